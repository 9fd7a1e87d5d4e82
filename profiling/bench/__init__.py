"""A benchmark of contestants: each in its own process, run in turn, compared round by round."""
