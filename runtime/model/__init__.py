"""Models: weights and tokenizers from disk, and the decoder that runs a batch."""
