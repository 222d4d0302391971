"""Mel bands for loaders and trainers: settings, filter banks and framing."""
