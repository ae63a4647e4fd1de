"""Queries to passages: Elasticsearch and the embedded index."""
