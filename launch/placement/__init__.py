"""Ranks on a host: who gets which cores, and why a number of ranks does not fit."""
