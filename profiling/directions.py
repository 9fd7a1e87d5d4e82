"""Directions of propagation: their names and colours in every table and chart."""

DIRECTION_COLOURS = {
    "forward": "#3c8ddc",
    "backward data": "#f08c00",
    "backward weights": "#e6194b",
    "backward": "#c2255c",
    "": "#868e96",
}
"""By direction of propagation as `direction_name` has it; without one: what only moves data."""


def direction_name(direction: str) -> str:
    """oneDNN's propagation kind as people say it, training and inference together."""
    if direction.startswith("forward"):
        return "forward"
    return "" if direction == "undef" else direction.replace("_", " ")
