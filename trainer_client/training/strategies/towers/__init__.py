"""The common parts of strategies with several towers: devices, batches, gradients and variables."""
