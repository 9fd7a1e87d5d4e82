"""Hosts, cores, memory and ranks of a run."""
