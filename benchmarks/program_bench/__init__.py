"""The benchmark of whole programs: the same work on phloem and on what people use instead of it.

What lives here: shapes of programs, the engines they run on, how cells are measured, stored and
reported. What does not: the command line (`benchmarks/programs.py`). Modules that a worker needs
(`shapes`, `texts`, `frontend`, `glue`, `worker` and `engines_*`) import the standard library only,
beside the engine they drive: they run in other engines' environments too.
"""
