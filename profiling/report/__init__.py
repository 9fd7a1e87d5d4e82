"""`retinanet profile report`: all measurements of a run, as one HTML page."""
