"""Checkpoints for use elsewhere: graphs for other runtimes, and 8-bit weights."""
