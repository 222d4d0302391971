"""What trainers have asked of a worker: who they are, which slots they lent it, and which want is built next."""
