"""Checking a data set before a run depends on it."""
