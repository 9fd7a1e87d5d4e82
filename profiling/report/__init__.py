"""`python -m profiling report`: all measurements of a run, as one HTML page."""
