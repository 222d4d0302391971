"""Hosts that join a job by its endpoint: the bundle of what they need, how it is given and how it is fetched."""
