"""What variants do, and what they do it with. Only workers import these: they load torch."""
