"""One request for text, whichever API it came by: admission, engine, candidates, accounting."""
