"""Internal side of a `Feed`: `FeedSession` serves the feed itself, the TensorFlow adapter and the callback."""
