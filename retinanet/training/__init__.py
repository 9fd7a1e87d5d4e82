"""Training, evaluation, and what a run leaves behind: checkpoints, metrics, pictures."""
