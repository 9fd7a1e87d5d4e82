"""Logs that oneDNN writes when ONEDNN_VERBOSE is set: reading them, the work in them. No torch."""
