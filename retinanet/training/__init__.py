"""Training, and the files of a run: checkpoints, metrics, curves."""
