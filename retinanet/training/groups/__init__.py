"""Compute groups: each takes batches and updates the weights when it is done, waiting for none."""
