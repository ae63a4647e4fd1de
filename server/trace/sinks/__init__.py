"""Where traces are kept: Elasticsearch, JSONL files, OpenTelemetry, a terminal."""
