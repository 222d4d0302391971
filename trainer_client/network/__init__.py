"""Thin shell around the core: sockets, memory, and the one thread that owns them."""
