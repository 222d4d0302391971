"""Examples and SequenceExamples, whatever file they lie in: their bytes, their features, and batches of them."""
