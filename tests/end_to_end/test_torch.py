"""PyTorch, as its users start it: two ranks under torchrun, stopped in mid-epoch and gone on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.support.loaders import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.loaders import Loaders

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

SCRIPT = """
import json, os, sys
from shared.quick_import import quick_import
with quick_import():
    import torch
    import trainer_client
    import trainer_client.torch

endpoint, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
feed = trainer_client.connect(endpoint, **trainer_client.torch.ranks())
data = trainer_client.torch.FeedTensors(feed)
saved = os.path.join(folder, "saved.pt")
if os.path.exists(saved):
    checkpoint = torch.load(saved, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    data.load_state_dict(checkpoint["data"])
done = 0
with open(os.path.join(folder, f"rank-{rank}.jsonl"), "a") as heard:
    while feed.epoch < 1 and done < steps:
        for batch in data:
            weights = batch["weight"]
            rows = weights.sum().clamp(min=1e-9)
            torch.distributed.all_reduce(rows)
            losses = (model(batch["audio"].mean(1)).squeeze(1) - batch["audio_length"] / 100) ** 2
            loss = (losses * weights).sum() / rows * torch.distributed.get_world_size()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tags = batch["tag"][weights > 0].tolist()
            heard.write(json.dumps({"number": batch.number, "tags": tags}) + "\\n")
            done += 1
            if done == steps:
                break
state = data.state_dict()
digest = sum(float(one.detach().double().sum()) for one in model.parameters())
both = [None, None]
torch.distributed.all_gather_object(both, digest)
assert both[0] == both[1], both
if rank == 0:
    torch.save({"model": model.state_dict(), "data": state}, saved)
feed.close()
torch.distributed.destroy_process_group()
# Not by the end of Python: in one of a dozen runs a thread of Gloo's still lets go of the last exchange's tensors by
# then, asks for the interpreter's lock, is ended, and so aborts the process.
os._exit(0)
"""

#: As the command does, but for looking for garbage among what is imported: a second of each process.
TORCHRUN = """
from shared.quick_import import quick_import
with quick_import():
    from torch.distributed.run import main
main()
"""


def _train(endpoint: str, folder: Path, steps: int) -> None:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-c", TORCHRUN, "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, str(script), endpoint, str(folder), str(steps)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[:3000]


def test_two_ranks_stopped_and_gone_on_get_each_sample_once(loaders: Loaders, tmp_path: Path) -> None:
    _train(loaders.endpoint, tmp_path, 3)
    _train(loaders.endpoint, tmp_path, 1_000_000)
    heard = [json.loads(line) for rank in (0, 1) for line in (tmp_path / f"rank-{rank}.jsonl").read_text().splitlines()]
    assert sorted(tag for one in heard for tag in one["tags"]) == list(range(150))
    numbers = sorted(one["number"] for one in heard)
    assert len(set(numbers)) == len(numbers)
