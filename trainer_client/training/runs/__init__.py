"""Parts of a run besides its model and its data: how far it goes, when it stops early, what it prints."""
