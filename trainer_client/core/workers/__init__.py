"""The workers that a trainer talks to: who they are, how the connections stand, which tickets they hold. Pure."""
