"""Internal: what a `Feed` stands for. `FeedSession` serves the feed itself, the TensorFlow adapter and the callback."""
