"""Logs that oneDNN writes when ONEDNN_VERBOSE is set: reading them, and the work in them. No torch."""
