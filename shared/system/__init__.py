"""The operating system: what it allows a process, and what it refuses."""
