"""Files to documents: reading, cutting into chunks, and storing what changed."""
