"""The ways in which `trainer-client train` trains: one class a strategy, behind one protocol."""
