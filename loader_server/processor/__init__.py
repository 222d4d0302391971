"""The processor that a job's batches are built for: its level, and keeping libraries to it."""
