"""Transforms of sound and of its features, a module each, and what several of them share."""
