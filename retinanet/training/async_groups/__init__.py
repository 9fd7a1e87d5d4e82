"""Compute groups that update common weights without waiting for each other."""
