"""`python -m retinanet predict`: boxes in a user's pictures and videos."""
