"""RetinaNet-ResNeXt50 and its training on CPUs."""
