"""Prediction: the outputs of a model for each sample of a stream, once and in order, though trainers die."""
