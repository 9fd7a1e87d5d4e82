"""`python -m launch scale`: throughput of training by ranks and threads."""
