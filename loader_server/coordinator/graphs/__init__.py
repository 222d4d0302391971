"""Data sets that trainers send as graphs: who may, what has arrived, where it is kept."""
