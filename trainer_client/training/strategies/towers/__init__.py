"""What strategies of several towers have in common: their devices, their batches, their gradients, their variables."""
