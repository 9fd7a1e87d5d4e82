"""What a contestant's process does with every photo; see profiling.bench.recipe."""
