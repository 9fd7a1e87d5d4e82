"""`python -m launch run`: hosts, mpirun and its families."""
