"""Strategies of `trainer-client train`: one class each, behind the protocol `Placement`."""
