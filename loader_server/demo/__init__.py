"""`loader-server demo`: the main job on a corpus of our own making, from nothing to a trained model."""
