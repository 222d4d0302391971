"""What both sides know of a user's own `tf.data` pipelines."""
