"""The detector: its network, anchors, the targets of its training, and its postprocessing."""
