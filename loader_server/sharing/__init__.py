"""Built batches that jobs of one machine share, if they say so and would build the very same bytes."""
