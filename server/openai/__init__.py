"""OpenAI's API: the same paths, fields and errors, on phloem's engine."""
