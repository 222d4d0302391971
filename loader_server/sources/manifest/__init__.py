"""The manifest source: what is said of CSV and JSON lines, of the recordings that they name, and of nothing else."""
