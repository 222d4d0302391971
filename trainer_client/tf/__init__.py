"""The TensorFlow adapter: the only room that imports TensorFlow, and what it takes to live beside it."""
