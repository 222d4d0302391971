"""A worker: one process, one core, that builds the batches that trainers ask for and pushes them."""
