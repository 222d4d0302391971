"""The books of queue mode: which trainer has which batch numbers; leased, given back, done, given up (pure)."""
