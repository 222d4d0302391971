"""Data folders of Kaldi, read without Kaldi."""
