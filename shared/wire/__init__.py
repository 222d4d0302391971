"""What crosses a socket: messages and their bounds, their bytes, the shape and the encodings of payloads."""
