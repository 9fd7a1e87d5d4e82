"""Checks before a run begins: findings, and how to fix them."""
