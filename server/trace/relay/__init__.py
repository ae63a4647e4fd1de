"""The traffic side of the trace proxy: bytes pass, a copy goes to the recorder."""
