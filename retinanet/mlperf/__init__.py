"""MLPerf training, of which RetinaNet on OpenImages was a benchmark until rules 5.1."""
