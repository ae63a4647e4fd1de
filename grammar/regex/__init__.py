"""Regular expressions: parsed, freed of assertions, and written for the engine.

`parser` reads Python's and ECMA-262's syntax and refuses what can't be enforced, `resolve` turns
anchors and lookaround into intersections and complements, `emit` writes Lark terminals.
"""
