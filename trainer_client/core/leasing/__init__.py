"""The core's upper part in queue mode, where batches are leased from the coordinator. Pure; must not know workers."""
