"""Requests to workers, and the meaning of their answers. Pure; must not know connections."""
