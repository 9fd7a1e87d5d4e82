"""Colours of the pictures of a trace."""

from profiling.trace.categories import Category

COLOURS = {
    Category.ONEDNN: "#3c8ddc",
    Category.OURS: "#2f9e44",
    Category.PRODUCTS: "#9c36b5",
    Category.COMMUNICATION: "#e6194b",
    Category.OTHER: "#f08c00",
}
GAPS = "#dee2e6"
PHASES = ("#343a40", "#868e96")
"""Neighbours differ."""
