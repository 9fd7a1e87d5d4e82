"""`python -m launch scale`: the scaling study."""
