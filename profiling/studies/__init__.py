"""Studies that run whole trainings: scaling, the planner, compute groups."""
