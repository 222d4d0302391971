"""The keys of a stream's batches, and the strings that come with them."""
