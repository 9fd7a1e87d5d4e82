"""The losses: classification by focal loss, boxes by L1."""
