"""`loader-server demo`: the main job on a corpus made for it, from nothing to a trained model."""
