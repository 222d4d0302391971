"""The operating system: what it allows a process, what it refuses, and files that are ours alone."""
