"""Our own training loop, one step after another, and what it asks of a strategy."""
