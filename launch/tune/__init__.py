"""The planner: how many hosts, ranks and threads reach the target soonest."""
