"""One window of an epoch: how its samples fill batches, one a row, packed, or in lanes. Pure."""
