"""`python -m launch tune`: the hosts, ranks, threads and batches that reach a target soonest."""
