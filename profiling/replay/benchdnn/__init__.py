"""Running benchdnn, oneDNN's own benchmark, on a log's problems."""
