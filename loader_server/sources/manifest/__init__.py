"""The manifest source: CSV and JSON lines, and the recordings that they name."""
