"""Transforms of sound, one module each, and what several of them share."""
