"""What this machine can do at most: matrix products of each type, and the memory's bandwidth."""
