"""HTTP, CLI, journal, trace proxy and viewer."""
