"""Transforms: what a raw sample becomes before it is put into a batch."""
