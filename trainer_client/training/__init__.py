"""A training loop of our own, and the command that runs it on a user's module."""
