"""Evaluation of a model on evaluation streams: while it is trained, or whenever there is a new checkpoint."""
