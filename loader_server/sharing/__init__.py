"""Built batches that jobs on one machine share, if they ask for it and would build the very same bytes."""
