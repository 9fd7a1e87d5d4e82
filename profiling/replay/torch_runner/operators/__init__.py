"""For each kind of primitive, the call of torch that reaches it. Loads torch: for the worker."""
