"""Text: files of lines, parallel files, and JSON lines."""
