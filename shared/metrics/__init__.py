"""Metrics: their names, serving them to Prometheus, and telling it where."""
