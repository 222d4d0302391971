"""Recordings of any source: headers, the stretch of a file that makes a sample, and decoding."""
