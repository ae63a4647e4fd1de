"""The page for people at `/`: programs as forms, and runs as they happen."""
