"""Programs over HTTP: what is registered, runs and their events, batches, graphs."""
