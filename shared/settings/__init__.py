"""The job file as frozen dataclasses, read once, refusing what they do not know."""
