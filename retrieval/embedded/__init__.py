"""The embedded index: tantivy for words, a flat matrix for vectors, one folder per index."""
