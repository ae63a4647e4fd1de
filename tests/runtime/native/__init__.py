"""Tests of the native decoder; a package, so that they share `support.py`."""
