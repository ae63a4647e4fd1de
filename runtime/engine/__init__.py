"""The engine: pages, prefix tree, scheduler and sampling over one decoder."""
