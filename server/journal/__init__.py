"""The record of runs on disk: what was asked, every effect, and how it ended."""
