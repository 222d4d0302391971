"""Everything that trains: loops, strategies, parameter servers, checkpoints, and what a trained model is asked for.

Rules: it uses feeds as users do, and no module of a feed imports it.
"""
