"""TensorFlow adapter: datasets over feeds, and what it takes to share a process with TensorFlow."""
