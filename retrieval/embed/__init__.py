"""Embeddings: the protocol, and the offline default. Importing this package loads no model."""
