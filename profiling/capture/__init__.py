"""What `profile.onednn`, `profile.trace` and `profile.perf` write while a training runs."""
