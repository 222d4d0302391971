"""The common parts of strategies with several towers: devices, rounds of batches, gradients and variables."""
