"""`python -m launch groups`: how many compute groups, and how much momentum, train soonest."""
