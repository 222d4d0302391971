"""Who has which batch numbers in queue mode: leased, given back, done, given up (pure)."""
