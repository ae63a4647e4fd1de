"""Elasticsearch and OpenSearch servers. Importing this package loads no client."""
