"""The recording side of the trace proxy, in a process of its own: bytes become traces."""
