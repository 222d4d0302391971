"""Keras layers: features made on the trainer's device, and embedding tables that parameter servers hold.

`LogMel` and `SpecAugment` do what `logmel` and `spec_augment` do in loaders, and take the same settings. Each row
counts only up to its own length, whatever follows; behind it, and in masked rows, features are zero.
"""

from __future__ import annotations

from trainer_client.layers.logmel import LogMel
from trainer_client.layers.served_embedding import ServedEmbedding
from trainer_client.layers.spec_augment import SpecAugment

__all__ = ["LogMel", "ServedEmbedding", "SpecAugment"]
