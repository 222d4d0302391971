"""A user's own `tf.data` pipeline as a source of whole batches."""
