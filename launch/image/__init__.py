"""The container image: its health check, and the removal of packages that it does not need."""
