"""The state machine that runs a StateGraph on a backend."""
