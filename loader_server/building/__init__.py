"""Building batches: reading ahead, decoding, padding, and telling a bad sample from a bad machine."""
