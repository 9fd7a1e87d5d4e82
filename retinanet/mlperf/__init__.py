"""MLPerf Training: RetinaNet on OpenImages was a benchmark in rules 2.0 to 5.1."""
