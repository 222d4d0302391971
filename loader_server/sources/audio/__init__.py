"""Recordings, whichever source names them: what a file's header says, which stretch of it is a sample, decoding."""
