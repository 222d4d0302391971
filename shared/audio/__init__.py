"""Mel bands for loaders and trainers alike: how they are asked for, what they are, and where frames lie."""
