"""Judging a model by evaluation streams: while it is trained, or whenever there is a new checkpoint."""
