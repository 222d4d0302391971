"""Sources: where samples live, and the index that says how long each of them is."""
