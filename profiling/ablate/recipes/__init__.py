"""What the workers of ablations run; see `profiling.bench.variant`."""
