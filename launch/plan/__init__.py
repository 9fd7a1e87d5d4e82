"""`python -m launch plan`: the places of all ranks of a job, drawn and as JSON."""
