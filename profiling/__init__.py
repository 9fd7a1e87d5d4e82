"""Measuring: where time goes, and how much faster one way of doing a thing is than another."""
