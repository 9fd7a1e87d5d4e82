"""How many compute groups, and how much momentum: Omnivore's short probes, from a cold start."""
