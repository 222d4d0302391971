"""Samples that lie in columns (NumPy arrays, Parquet, Arrow), gathered and padded a whole batch at a time."""
