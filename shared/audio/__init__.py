"""Mel bands for loaders and trainers alike: their settings, their definitions, and where frames lie."""
