"""Strategies of `trainer-client train`: one class each, behind the interface `Placement`."""
