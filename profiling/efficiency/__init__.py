"""Whether a run's primitives were as fast as they are alone, and what the run could be."""
