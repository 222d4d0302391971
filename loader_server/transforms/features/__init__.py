"""Transforms of features, a module each, and the statistics that one of them goes by."""
