"""The web server: the application, its borders (admission, keys, limits) and its operations."""
