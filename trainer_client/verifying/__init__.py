"""Verifying: a digest over the batches of an epoch, by which runs, fleets and ways of sharing are compared."""
