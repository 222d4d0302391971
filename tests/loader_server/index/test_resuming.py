"""An index goes on where a killed indexer was, and is not made again while all that it is made from is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.index.draft import open_draft
from loader_server.index.folder import open_index
from loader_server.index.make import IndexRequest, make_index, unchanged_index
from loader_server.transforms.chain import Chain
from shared.errors import DataError, MachineError
from shared.wire.batch_layout import Field
from tests.support.corpora import make_corpus
from tests.support.sources import spec_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Lengths that have to be measured, so that a draft has measured columns as well.
_CHAIN = Chain.make(
    ("tests.support.transforms:undeclared",), {}, "job", (Field(key="audio", dtype="float32", shape=(None,)),)
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Recordings, and two rows that are bad."""
    manifest = make_corpus(tmp_path, samples=10, longest_s=0.05)
    lines = manifest.read_text().splitlines()
    manifest.write_text("\n".join([*lines[:4], "missing \u00e9.wav,x", *lines[4:], lines[2]]) + "\n")
    return manifest


def _request(manifest: Path, **changes: Any) -> IndexRequest:
    base = manifest.parent
    own = {"folder": base / "index", "processes": 1, "piece_rows": 1, "chain": _CHAIN}
    spec = spec_of("manifest", base, paths=[manifest.name])
    return IndexRequest(**{**own, "spec": spec, "source": spec.make(), **changes})


def _interrupt_after(rows: int) -> Callable[[int, int], None]:
    def progress(done: int, _total: int) -> None:
        if done == rows:
            raise KeyboardInterrupt

    return progress


def _content(folder: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """All that an index holds, but the name that its columns happen to have; nothing else is beside them."""
    meta = json.loads((folder / "meta.json").read_text())
    columns = folder / meta.pop("folder")
    assert sorted(folder.iterdir()) == sorted([columns, folder / "meta.json"])
    return {path.name: path.read_bytes() for path in columns.iterdir()}, meta


@pytest.fixture
def whole(corpus: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The index as it is when nobody interrupts."""
    return _content(make_index(_request(corpus, folder=corpus.parent / "whole")).folder)


def _rows_looked_at(request: IndexRequest) -> list[int]:
    seen: list[int] = []
    object.__setattr__(request, "progress", lambda done, _total: seen.append(done))
    make_index(request)
    return seen


@pytest.mark.parametrize("rows", range(1, 12))
def test_who_is_interrupted_goes_on_from_there_to_the_same_bytes(corpus: Path, rows: int, whole: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_index(_request(corpus, progress=_interrupt_after(rows)))
    assert _rows_looked_at(_request(corpus)) == list(range(rows, 13))
    assert _content(corpus.parent / "index") == whole


def test_who_is_interrupted_again_and_again_arrives(corpus: Path, whole: Any) -> None:
    for rows in range(2, 12, 3):
        with pytest.raises(KeyboardInterrupt):
            make_index(_request(corpus, progress=_interrupt_after(rows)))
    make_index(_request(corpus))
    assert _content(corpus.parent / "index") == whole


def test_an_interrupt_keeps_the_index_that_is_there(corpus: Path) -> None:
    make_index(_request(corpus))
    before = open_index(corpus.parent / "index")
    with pytest.raises(KeyboardInterrupt):
        make_index(_request(corpus, progress=_interrupt_after(3)))
    assert open_index(corpus.parent / "index").meta == before.meta


def test_an_interrupt_before_anything_was_looked_at_leaves_nothing(corpus: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_index(_request(corpus, progress=_interrupt_after(0)))
    assert not (corpus.parent / "index").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda corpus: {"piece_rows": 2},
        lambda corpus: {"chain": None},
        lambda corpus: corpus.write_text(corpus.read_text().replace("zero", "hero")) and {},
        lambda corpus: (corpus.parent / "missing \u00e9.wav").write_bytes(b"x") and {},
        lambda corpus: os.utime(corpus.parent / "clips/00001.wav") or {},
        lambda corpus: next(corpus.parent.glob("index/*/journal.json")).write_text("{") and {},
        lambda corpus: next(corpus.parent.glob("index/*/frames.npy")).write_bytes(b"") or {},
        lambda corpus: os.truncate(next(corpus.parent.glob("index/*/path.text.npy")), 140) or {},
        lambda corpus: next(corpus.parent.glob("index/*/bad_rows.jsonl")).unlink() or {},
    ],
)
def test_what_was_left_of_other_data_or_settings_is_swept_and_made_anew(corpus: Path, change: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_index(_request(corpus, progress=_interrupt_after(6)))
    assert _rows_looked_at(_request(corpus, **change(corpus)))[0] == 0
    made = _content(corpus.parent / "index")
    (corpus.parent / "index" / "meta.json").unlink()
    make_index(_request(corpus, **({"chain": None} if not made[1]["recipe"] else {})))
    assert _content(corpus.parent / "index") == made


def test_data_that_are_refused_leave_the_list_of_bad_rows_and_no_draft(corpus: Path) -> None:
    with pytest.raises(DataError, match=r"only good rows.* All are in .*refused_rows\.jsonl: mend them, or") as refused:
        make_index(_request(corpus, strict=True, keep_s=0.0))
    (left,) = (corpus.parent / "index").iterdir()
    assert str(left) in refused.value.remedy
    assert [json.loads(line)["reason"] for line in left.read_text().splitlines()] == ["missing_file", "duplicate"]
    make_index(_request(corpus))
    assert not left.exists()


def test_a_disk_that_fails_at_the_end_costs_nothing_but_the_end(corpus: Path, monkeypatch: Any, whole: Any) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr("loader_server.index.draft.meta_json", full)
        with pytest.raises(MachineError, match="No space left"):
            make_index(_request(corpus))
    assert _rows_looked_at(_request(corpus)) == [12]
    assert _content(corpus.parent / "index") == whole


_KILLED = """
import sys
from pathlib import Path
from loader_server.index.make import make_index
from tests.loader_server.index.test_resuming import _request

def progress(done, total):
    print(done, flush=True)

if __name__ == "__main__":
    make_index(_request(Path(sys.argv[1]), processes=2, keep_s=0.0, progress=progress))
"""


def test_kill_9_costs_what_was_under_way_and_leaves_no_process(corpus: Path, whole: Any) -> None:
    script = corpus.parent / "killed.py"
    script.write_text(_KILLED)
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, script, corpus], stdout=subprocess.PIPE, env=paths) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < 5:
            pass
        process.send_signal(signal.SIGKILL)
        process.stdout.read()  # ends once every process that held the pipe is gone
    seen = _rows_looked_at(_request(corpus))
    assert 5 <= seen[0] <= 12
    (got, meta), (want, whole_meta) = _content(corpus.parent / "index"), whole
    assert {name: (got.get(name), want.get(name)) for name in {*got, *want} if got.get(name) != want.get(name)} == {}
    assert meta == whole_meta


def test_a_journal_that_was_half_written_is_not_left_in_the_index(corpus: Path, whole: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_index(_request(corpus, progress=_interrupt_after(6)))
    (journal,) = (corpus.parent / "index").glob("*/journal.json")
    journal.with_name("journal.json.new").write_bytes(journal.read_bytes()[:20])
    assert _rows_looked_at(_request(corpus))[0] == 6
    assert _content(corpus.parent / "index") == whole


def test_a_draft_is_as_good_as_its_journal_says(corpus: Path) -> None:
    """What a process wrote after it last kept its work is cut off."""
    with pytest.raises(KeyboardInterrupt):
        make_index(_request(corpus, progress=_interrupt_after(6)))
    (journal,) = (corpus.parent / "index").glob("*/journal.json")
    found = json.loads(journal.read_text())
    for name in ("frames.npy", "path.text.npy", "path.starts.npy", "measured_0.npy", "bad_rows.jsonl"):
        with (journal.parent / name).open("ab") as file:
            file.write(b"\xff" * 100)
    with open_draft(corpus.parent / "index", found["made_from"], 1) as draft:
        draft.close()
        assert (draft.journal.rows, draft.journal.samples, draft.journal.bad) == (6, 5, {"missing_file": 1})
        assert draft.numbers()["frames"].shape == (5,)
        assert draft.strings()["path"][4] == "clips/00004.wav"
        assert np.array_equal(draft.measured("audio"), draft.numbers()["frames"])
        assert len((journal.parent / "bad_rows.jsonl").read_text().splitlines()) == 1


# --- nothing to do ---


def test_an_index_of_unchanged_data_is_told(corpus: Path) -> None:
    made = make_index(_request(corpus))
    assert not made.unchanged
    told = unchanged_index(_request(corpus))
    assert told is not None
    assert told.unchanged
    assert (told.fingerprint, told.samples, told.rows) == (made.fingerprint, 10, 12)
    assert (told.bad, told.bad_counts) == (made.bad, {"duplicate": 1, "missing_file": 1})
    # The size of pieces and the number of processes shape nothing.
    assert unchanged_index(_request(corpus, piece_rows=7, processes=2)) == told


@pytest.mark.parametrize(
    "change",
    [
        lambda corpus: {"strict": True},
        lambda corpus: {"chain": None},
        lambda corpus: {"folder": corpus.parent / "elsewhere"},
        lambda corpus: {"spec": spec_of("manifest", corpus.parent, paths=[corpus.name] * 2)},
        lambda corpus: corpus.write_text(corpus.read_text().replace("zero", "hero")) and {},
        lambda corpus: (corpus.parent / "missing \u00e9.wav").write_bytes(b"x") and {},
        lambda corpus: (corpus.parent / "clips/00001.wav").unlink() or {},
        lambda corpus: _write_again(corpus.parent / "clips/00001.wav") or {},
        lambda corpus: next(corpus.parent.glob("index/*/frames.npy")).unlink() or {},
    ],
)
def test_an_index_that_would_be_another_is_not_called_unchanged(corpus: Path, change: Any) -> None:
    make_index(_request(corpus))
    assert unchanged_index(_request(corpus, **change(corpus))) is None


def _write_again(path: Path) -> None:
    """Other bytes, with the size and time of the old ones, as rsync and cp -p leave them."""
    status, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_where_nobody_can_tell_an_index_is_made_anew(corpus: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("loader_server.sources.manifest.source.ManifestSource.stamp", lambda _: "")
    make_index(_request(corpus))
    assert unchanged_index(_request(corpus)) is None
    with pytest.raises(KeyboardInterrupt):
        make_index(_request(corpus, folder=corpus.parent / "other", progress=_interrupt_after(6)))
    assert not (corpus.parent / "other").exists()
