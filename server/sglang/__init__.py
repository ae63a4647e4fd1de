"""SGLang's native HTTP API, as far as its own frontend uses it."""
