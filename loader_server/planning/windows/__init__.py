"""One window of an epoch: how its samples fill batches, one by one, packed, or in lanes. Pure."""
