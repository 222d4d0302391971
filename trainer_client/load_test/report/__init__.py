"""The report of a load test: figures of it and of several, as JSON, Markdown and one HTML page."""
