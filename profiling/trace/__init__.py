"""Traces of torch.profiler: where a step's time goes, and into how many pieces it falls. No torch.

After section 2.2 of Fu et al. 2023: a trace is an ordered set of spans, each with an operation's
name, a begin, an end, and relations to other spans; where it is highly fragmented, an own operator
that merges several may help.
"""
