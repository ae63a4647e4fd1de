"""SGLang servers as a `Backend`, by HTTP and token by token."""
