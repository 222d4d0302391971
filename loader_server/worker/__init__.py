"""A worker: one process, one core, that builds the batches it is asked for and pushes them."""
