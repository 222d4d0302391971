"""Verification: a digest over the batches of an epoch, to compare runs, fleets and ways of sharing."""
