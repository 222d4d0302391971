"""The wants of a worker's trainers: who they are, which slots they lent it, and which want is built next."""
