"""Recordings of some steps of a training: `profile.onednn`, `profile.trace`, `profile.perf`."""
