"""A checkpoint's boxes in a user's own pictures and videos: drawn, and as JSON."""
