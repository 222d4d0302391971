"""Cuts of Lhotse: plain ones, what it stored for them, and those that only it can make."""
