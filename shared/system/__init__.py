"""What the operating system allows a process, what it refuses, and files that are ours alone."""
