"""Chat APIs in OpenAI's shape as a `Backend` of reduced ability."""
