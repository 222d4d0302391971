"""The training room: loops, strategies, parameter servers, checkpoints, evaluation and prediction.

Rules: it uses feeds as users do, and no module of a feed imports it.
"""
