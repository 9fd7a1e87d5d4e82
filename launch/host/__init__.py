"""What a host has, and what of it this process may use: read, and not yet divided."""
