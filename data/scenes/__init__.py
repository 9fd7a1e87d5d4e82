"""Drawn scenes, in place of photos, with their boxes."""
