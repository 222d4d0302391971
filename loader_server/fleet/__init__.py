"""Hosts that join a job by its endpoint: the bundle of what they need, how it is served and how it is fetched."""
