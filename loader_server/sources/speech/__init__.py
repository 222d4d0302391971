"""Data folders of speech toolkits, read without the toolkits: Kaldi's, Lhotse's."""
