"""Examples and SequenceExamples in any kind of file: their bytes, their features, and batches of them."""
