"""The built-in runner: a log's problems through the oneDNN that torch brings."""
