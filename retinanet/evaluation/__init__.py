"""Detections of a trained model, the metric, and pictures."""
