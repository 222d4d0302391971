"""Remote files: brought into a cache on this machine's disk, which its processes share, and read from there."""
