"""The engine in a supervised child process: one that dies, hangs or leaks is replaced."""
