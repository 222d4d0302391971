"""Users' own `tf.data` pipelines: what workers and trainers both know of them."""
