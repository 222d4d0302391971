"""Metrics: their names, the server that exposes them to Prometheus, and files that tell Prometheus where."""
