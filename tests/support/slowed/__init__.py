"""A job that can be slowed down at each of its stations while it runs: sources, a transform, trainers."""
