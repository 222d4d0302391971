"""Data sets that the job's workers make from the user's own code, and the same code without workers."""
