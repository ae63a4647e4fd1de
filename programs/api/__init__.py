"""The face of programs: the decorator, the primitives and the state a user holds."""
