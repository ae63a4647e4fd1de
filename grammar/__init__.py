"""Constraints: from regex and schema to token masks."""
