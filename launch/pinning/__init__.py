"""A rank's part of its host, applied before torch is loaded, and looked at after."""
