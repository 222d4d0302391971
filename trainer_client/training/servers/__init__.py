"""Parameter servers: a model's variables in shares, which workers of unequal speed train without waiting."""
