"""From a trained model to boxes, the metric, and pictures of what was found."""
