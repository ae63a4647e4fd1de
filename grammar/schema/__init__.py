"""JSON Schema: read by its dialect, brought to a normal form, and written as a grammar.

`document` finds subschemas and references, `flatten` turns a conjunction of schemas and negated
schemas into alternatives of plain facets, `model` is the normal form, `build` closes it over all
reachable subschemas, `emit` writes it. `evaluate` is a plain validator of the same dialect.
"""
