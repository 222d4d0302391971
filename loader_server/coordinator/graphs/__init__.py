"""Data sets that trainers send as graphs: upload, storage and the first epoch."""
