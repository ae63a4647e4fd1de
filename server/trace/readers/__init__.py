"""Sources of traces: JSONL folders, Elasticsearch, a journal, a running server."""
