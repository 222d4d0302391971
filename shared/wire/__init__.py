"""The wire: messages with their bounds and bytes, and the shape and encodings of payloads."""
