"""The engine room: where tokens and KV live."""
