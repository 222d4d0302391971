"""One stream as the coordinator sees it: its batches, its trainers and their ranks, and its leases in queue mode."""
