"""Files as sources meet them: local and remote ones alike, patterns and lists of them, and whether they changed."""
