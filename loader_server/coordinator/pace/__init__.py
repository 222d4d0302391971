"""How fast a job goes, by heartbeats: what limits it, and how many workers it wants (pure)."""
