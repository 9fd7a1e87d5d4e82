"""Training, and what a run leaves behind: checkpoints, metrics, curves."""
