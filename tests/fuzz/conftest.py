"""The same examples in each run of the suite; `make fuzz` is what searches."""

from hypothesis import settings

settings.register_profile("suite", derandomize=True, database=None, deadline=None)
settings.load_profile("suite")
