"""Checkpoints of a model and its place in the data, committed and restored together."""
