"""The loop with a served table: as a dense run trains, judged by the rows of the checkpoint, saved, resumed, exported."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import numpy as np
import pytest

from shared.errors import DataError, SettingsError
from shared.quick_import import quick_import
from tests.support.fake_feed import FakeFeed
from tests.trainer_client.training.servers.test_served_loop import Losses, MoveAt, QueueCursor
from tests.trainer_client.training.servers.test_served_model import Served

with quick_import():
    import keras
    import tensorflow as tf

    from trainer_client import Until, Validation
    from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
    from trainer_client.training.loop.base_loop import TrainingData
    from trainer_client.training.runs.until import LoopSettings
    from trainer_client.training.servers.served_loop import ServedLoop, ServedSettings
    from trainer_client.training.servers.served_model import SharesSettings
    from trainer_client.training.servers.server_connections import ServerConnections
    from trainer_client.training.strategies.single import Single

from trainer_client.layers import ServedEmbedding
from trainer_client.layers.initial_rows import initial_rows
from trainer_client.training.checkpoints.saved_tables import SavedTables, attach_saved_tables
from trainer_client.training.evaluating.evaluator import Evaluator
from trainer_client.training.loop.training_loop import TrainingLoop
from trainer_client.training.train import export_model

FORM = {"inputs": "text", "targets": "weight", "weights": "weight"}
ROWS = 40
