"""`python -m profiling stats`: what oneDNN's log says in sum, as tables and pictures."""
