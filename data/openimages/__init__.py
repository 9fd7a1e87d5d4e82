"""OpenImages as it is published: CSV files of boxes, classes and image ids."""
