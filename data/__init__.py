"""Reading: annotations, classes, image files, transforms, and the order in which they are read.

Each name is imported from its own module: commands that read no images then load no torch.
"""
