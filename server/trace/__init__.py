"""Debug traces: recording what passes a server, keeping it, and reading it back."""
