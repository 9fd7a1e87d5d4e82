"""`python -m profiling compare`: two logs side by side, what differs on top."""
