"""The image: what is left out of it, how it is looked at, how it is tried on a bare Debian."""
