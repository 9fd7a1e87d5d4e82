"""`python -m profiling report`: everything that is known of a run, as one page for a browser."""
