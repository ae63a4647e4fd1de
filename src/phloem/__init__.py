"""phloem: a stateful runtime for structured language-model programs."""
