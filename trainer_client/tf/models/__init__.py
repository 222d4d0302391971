"""What is done with a user's Keras model besides feeding it: variables, evaluation, outputs and summaries."""
