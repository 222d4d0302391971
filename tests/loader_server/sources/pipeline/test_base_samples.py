from pathlib import Path

import pytest

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.sources.source import OfJob
from loader_server.stream import open_base
from shared.errors import SettingsError

JOB = """
[job]
name = "x"
[streams.sentences]
source = "lines"
paths = ["text.txt"]
transforms = ["my_refusal:refuse_four", "characters"]
length = "text"
budget = "100 characters"
[streams.train]
source = "pipeline"
base = "sentences"
"""
REFUSAL = """
from loader_server.transforms import SampleError, transform

@transform()
def refuse_four(sample, rng):
    if len(sample["text"]) == 4:
        raise SampleError(reason="four", expected="not four", got="four", where="here", remedy="Leave it.")
"""


@pytest.fixture
def of_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OfJob:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_refusal.py").write_text(REFUSAL)
    (tmp_path / "text.txt").write_text("".join("x" * length + "\n" for length in range(1, 8)))
    (tmp_path / "job.toml").write_text(JOB)
    index_streams(JobFile(tmp_path / "job.toml"), ["sentences"])
    return OfJob(stream="train", path=tmp_path / "job.toml")


def test_a_shard_has_its_own_samples_and_leaves_bad_ones_out_by_name(of_job, caplog):
    base = open_base(of_job, "sentences")
    assert [field.key for field in base.fields] == ["text"]
    lengths = [[len(one["text"]) for one in base.of_shard(0, shard, 3)] for shard in range(3)]
    assert lengths == [[1, 7], [2, 5], [3, 6]]
    assert "sample left out  stream=sentences" in caplog.text
    base.close()


@pytest.mark.parametrize("name", ["train", "tain"])
def test_a_base_is_a_stream_of_samples(of_job, name):
    with pytest.raises(SettingsError, match=rf"\[streams\.train\]: .* another stream.* got base = .{name}"):
        open_base(of_job, name)
