"""Running a log's problems again, alone: what the hardware can do with each."""
