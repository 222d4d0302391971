"""Our own training loop, one step after another, and the interface to a strategy."""
