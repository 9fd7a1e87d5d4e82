"""A benchmark of variants: each in its own process, run in turn, compared round by round."""
