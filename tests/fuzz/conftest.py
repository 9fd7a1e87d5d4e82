"""The suite uses the same examples in each run; `make fuzz` searches for new ones."""

from hypothesis import settings

settings.register_profile("suite", derandomize=True, database=None, deadline=None)
settings.load_profile("suite")
