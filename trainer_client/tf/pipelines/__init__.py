"""Data sets that the job's workers make with the user's own code, and the same code without workers."""
