"""Data sets of speech toolkits, read without the toolkits: Kaldi data folders and Lhotse cut manifests."""
