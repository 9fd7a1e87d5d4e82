"""Timing the reading of images."""
