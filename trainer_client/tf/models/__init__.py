"""What is done with a user's Keras model besides feeding it: its variables, evaluation, outputs and summaries."""
