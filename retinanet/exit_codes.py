"""What a command's exit status says to scripts and schedulers."""

FINISHED = 0
BAD_INPUT = 2
LOSS_NOT_FINITE = 3
STOPPED_BY_SIGNAL = 75
"""After writing a checkpoint; the same command with `--resume` goes on (sysexits' EX_TEMPFAIL)."""
INTERRUPTED = 130
"""Ctrl-C before there was anything to keep, or twice (128 + SIGINT, as shells count)."""
