"""Where a run executes: memory and ranks. Nothing here loads torch."""
