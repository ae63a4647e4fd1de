"""The decoder in compiled code for x86-64 CPUs: one call per forward pass.

`decoder.py` is the way in. What does not live here: models of any other device; torch's decoder
(`runtime/model/llama.py`) runs everywhere and is the reference.
"""
