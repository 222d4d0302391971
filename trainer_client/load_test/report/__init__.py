"""Report of a load test: figures of one test and of several, as JSON, Markdown and one HTML page."""
