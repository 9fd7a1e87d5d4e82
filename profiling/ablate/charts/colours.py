"""Colours: the same for the same thing in every picture."""

PHASES = {
    "forward": "#3c8ddc",
    "loss": "#2f9e44",
    "loss backward": "#94d82d",
    "network backward": "#f08c00",
    "backward": "#f08c00",
    "optimizer": "#9c36b5",
}
PLAIN = "#3c8ddc"
PAPER = "#e6194b"
DOTS = "#343a40"
LINES = ("#3c8ddc", "#f08c00", "#2f9e44", "#e6194b", "#9c36b5", "#0c8599", "#5c940d", "#868e96")
PRIMITIVES = {
    "convolution forward": "#1c7ed6",
    "convolution backward data": "#f08c00",
    "convolution backward weights": "#e6194b",
    "our convolution forward": "#74c0fc",
    "our convolution backward": "#ffa8a8",
    "matmul": "#2f9e44",
    "matrix products of MKL": "#8ce99a",
    "inner product": "#5c940d",
    "reorder": "#fcc419",
    "elsewhere": "#adb5bd",
}
"""Others take what is left of `LINES`."""
