"""The chapters of the page: each from the material to plain blocks."""
