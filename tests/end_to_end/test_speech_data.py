"""Data of speech toolkits, from their files to batches: streams of one job, and a sample whose labels do not fit."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

import trainer_client
from tests.loader_server.sources.cuts.lhotse_data import GOLDEN as CUTS
from tests.loader_server.sources.hdf5.data import RETURNN, sequences
from tests.loader_server.sources.speech.kaldi_data import table, write_recordings
from tests.loader_server.sources.speech.lhotse_golden import GOLDEN, write_audio
from tests.support.loaders import running

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
[job]
name = "speech"
max_bad = 1.0
listen = "tcp://127.0.0.1:*"
[streams.kaldi]
source = "kaldi"
paths = ["data"]
transforms = ["logmel", "characters", "ctc_fit"]
length = "audio"
budget = "1 s"
[streams.kaldi.logmel]
rate = 8000
bands = 4
[streams.kaldi.ctc_fit]
reduction = 10
[streams.lhotse]
source = "lhotse"
paths = ["cuts.jsonl.gz"]
length = "audio"
budget = "6 s"
[streams.stored]
source = "lhotse"
paths = ["stored/cuts.jsonl"]
root = "stored"
values = "features"
custom = { snr = "float32", alignment = "array", domain = "text" }
filter = 'domain == "radio"'
length = "features"
budget = "300 steps"
[streams.returnn]
source = "hdf5"
paths = ["returnn.hdf"]
length = "data"
budget = "20 frames"
"""


def seen(feed):
    """The valid rows of an epoch, each padded value cut to its length, by the sample's name."""
    found = {}
    for batch in feed:
        for row in np.flatnonzero(batch["weight"]):
            keys = [key.removesuffix("_length") for key in batch if key.endswith("_length")]
            values = {key: batch[key][row, : batch[f"{key}_length"][row]].tolist() for key in keys}
            found[feed.tag(int(batch["tag"][row]))] = values
    return found


@pytest.mark.heritage("D16")
def test_what_the_toolkits_wrote_is_trained_on(tmp_path: Path) -> None:
    write_recordings(tmp_path / "data", "r")
    table(tmp_path / "data", "segments", "a r 0 0.4", "b r 0.2 0.6", "c r 0.5 0.9", "d r 1 1.3", "late r 2 3")
    table(tmp_path / "data", "text", "a abc", "b abcde", "c aab", "d a", "late a")
    audio = write_audio(tmp_path)
    shutil.copy(GOLDEN / "cuts.jsonl.gz", tmp_path)
    shutil.copy(RETURNN, tmp_path)
    shutil.copytree(CUTS / "numpy_files", tmp_path / "stored")
    (tmp_path / "job.toml").write_text(JOB)
    with running(tmp_path / "job.toml", workers=1) as loaders:
        found = {}
        for name in ("kaldi", "lhotse", "stored", "returnn"):
            with trainer_client.connect(loaders.endpoint, stream=name) as feed:
                found[name] = seen(feed)
    assert {key: (len(one["audio"]), one["text"]) for key, one in found["kaldi"].items()} == {
        "a": (38, [1, 2, 3]),
        "d": (28, [1]),
    }
    assert found["lhotse"].keys() == {"whole", "part", "right", "call"}
    assert found["lhotse"]["right"]["audio"] == audio["call.flac"][4800 : 4800 + 12443, 1].tolist()
    expected = np.load(tmp_path / "stored/expected.npz")
    assert found["stored"] == {
        name: {key: expected[f"{name} {key}"].tolist() for key in ("features", "alignment")} for name in ("c1", "c3")
    }
    assert found["returnn"] == {
        tag: {"data": data.tolist(), "classes": classes.tolist()} for tag, (data, classes) in sequences().items()
    }
    (masked,) = map(json.loads, (tmp_path / ".stoker/speech/quarantine.jsonl").read_text().splitlines())
    assert (masked["name"], masked["reason"]) == ("c", "labels_do_not_fit")
