"""The ranks of a job together: how they meet, talk, watch each other, and end."""
