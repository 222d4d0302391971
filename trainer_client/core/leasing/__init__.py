"""The top of the core in queue mode: what comes next is leased from the coordinator. Pure; must not know workers."""
