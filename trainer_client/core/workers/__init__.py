"""The workers that a trainer talks to: their state, their connections, and the tickets that they hold. Pure."""
