"""Traces of torch.profiler: the time of a step by operator, and its fragmentation. No torch.

After section 2.2 of Fu et al. 2023: a trace is an ordered set of spans, each with an operation's
name, a begin, an end, and relations to other spans; where it is highly fragmented, a custom
operator that merges several may help.
"""
