"""Whether a run can work, before it begins: what is looked at, what was found, and the fix."""
