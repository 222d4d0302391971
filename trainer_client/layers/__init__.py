"""Features made on the trainer's device: Keras layers that make of sound what `logmel` and `spec_augment` make of it in
loaders, whose settings they take.

Each row counts up to its own length only, whatever stands behind it; there, and in masked rows, features are zero.
"""

from __future__ import annotations

from trainer_client.layers.logmel import LogMel
from trainer_client.layers.spec_augment import SpecAugment

__all__ = ["LogMel", "SpecAugment"]
