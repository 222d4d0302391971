"""What is done with a user's Keras model besides feeding it: its variables, its evaluation, its summaries."""
