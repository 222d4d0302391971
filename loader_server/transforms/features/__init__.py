"""Transforms of features, one module each, and the statistics that one of them uses."""
