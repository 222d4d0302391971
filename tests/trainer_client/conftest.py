"""A feed against a coordinator and a worker in this process; graphs of TensorFlow as they are written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import trainer_client
from tests.support.ends import Ends


@pytest.fixture(scope="module")
def ends():
    with Ends() as both:
        yield both


@pytest.fixture
def feed(ends):
    ends.heard.clear()
    with trainer_client.connect(ends.endpoint, prefetch=4) as one:
        yield one


#: XLA optimises machine code in the same way, with LLVM; what it compiles it checks, fuses and runs all the same.
QUICK_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

#: Where what enters TensorFlow is tested, and how: with all that it does to a graph.
OPTIMISED = [Path(__file__).parent / place for place in ("tf", "training/evaluating/test_evaluator.py")]


@pytest.fixture(autouse=True, scope="module")
def graphs_as_they_are(request):
    """TensorFlow optimises each graph for as long as it takes to trace it, which pays after thousands of steps. Tests
    of what is done with losses, weights and checkpoints take ten; those of commands have optimised ones.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or any(map(request.path.is_relative_to, OPTIMISED)):
        yield
        return
    tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    before = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = QUICK_XLA if before is None else before  # which a process reads once
    yield
    if before is None:
        del os.environ["XLA_FLAGS"]
    tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
