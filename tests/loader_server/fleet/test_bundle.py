"""The bundle of a real job: which files belong to it, and pieces of them though they change on disk."""

from __future__ import annotations

import gzip
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.commands.index import index_missing
from loader_server.commands.statistics import make_statistics
from loader_server.fleet import bundle
from loader_server.fleet.bundle import Bundle, BundleKeeper, bundle_files, bundle_nbytes
from loader_server.fleet.manifest import Manifest
from loader_server.index.folder import read_meta
from loader_server.job_file import JobFile
from loader_server.machine.graph_files import write_graph
from shared.errors import DataError
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from tests.loader_server.fleet.bundles import PIECE
from tests.loader_server.machine.test_graph_files import meta
from tests.support.descriptors import open_descriptors
from tests.support.example_protos import example
from tests.support.loaders import wait_until, write_job
from tests.support.records import record

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.index.folder import Meta


@pytest.fixture
def job(tmp_path: Path) -> JobFile:
    write_job(
        tmp_path,
        samples=12,
        transforms=("logmel", "normalise", "characters"),
        stream='[streams.train.normalise]\nstatistics = "./sums/mean.json"',
    )
    made = JobFile(tmp_path / "job.toml")
    (tmp_path / "sums").mkdir()
    make_statistics(made, ["train"], processes=1)
    index_missing(made)
    return made


def whole(bundle: Bundle) -> bytes:
    offset, found = 0, b""
    while (content := bundle.piece_of(bundle.manifest, offset)) is not None:
        found += content
        offset += len(content)
    return found


def test_it_has_the_job_file_named_files_and_each_index(job: JobFile) -> None:
    files = dict(bundle_files(job))
    assert files["job.toml"].samefile(job.path)
    assert files["files/0.json"].samefile(job.base / "sums" / "mean.json")
    assert {"index/index-train/meta.json", "index/index-dev/meta.json"} <= set(files)
    assert list(files)[:2] == ["job.toml", "files/0.json"]
    assert not any("journal" in name or "quarantine" in name or name.endswith(".wav") for name in files)
    assert bundle_nbytes(job) == sum(path.stat().st_size for path in files.values())


def test_what_a_source_keeps_beside_its_index_goes_with_it(tmp_path: Path) -> None:
    """Without it, a host that joins could not read compressed records."""
    packed = gzip.compress(b"".join(record(example(x=[0.5] * n)) for n in range(1, 9)))
    (tmp_path / "a.tfrecord.gz").write_bytes(packed)
    stream = 'source = "tfrecord"\npaths = ["a.tfrecord.gz"]\nlength = "x"\nbudget = "40 steps"\n'
    (tmp_path / "job.toml").write_text(f'[job]\nname = "packed"\nseed = 1\n\n[streams.train]\n{stream}')
    made = JobFile(tmp_path / "job.toml")
    index_missing(made)
    suffixes = {path.suffix for name, path in bundle_files(made) if name.startswith("index/index-train/kept/")}
    assert suffixes == {".gzidx", ".json", ".starts"}
    bundle = Bundle(made)
    assert whole(bundle).endswith(b"".join(path.read_bytes() for _, path in bundle_files(made)))
    bundle.close()


def test_all_pieces_together_are_the_manifest_and_the_files(job: JobFile) -> None:
    bundle = Bundle(job)
    content = whole(bundle)
    manifest = Manifest.decode(content[: len(bundle.manifest.encoded)])
    assert manifest == bundle.manifest
    assert content[len(manifest.encoded) :] == b"".join(path.read_bytes() for _, path in bundle_files(job))
    assert manifest.named == {"./sums/mean.json": "files/0.json"}
    assert manifest.folder == str(job.base)
    bundle.close()


def test_an_index_that_vanishes_after_it_was_hashed_leaves_no_file_open(
    job: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, hashed = open_descriptors(), len(dict(bundle_files(job)))

    def vanishing(folder: Path) -> Meta:
        if len(open_descriptors() - before) >= hashed:
            raise DataError(expected="an index", got="none", where=str(folder), remedy="Run loader-server index.")
        return read_meta(folder)

    monkeypatch.setattr(bundle, "read_meta", vanishing)
    with pytest.raises(DataError):
        Bundle(job)
    assert open_descriptors() == before


def test_an_index_that_is_removed_meanwhile_is_still_given(job: JobFile) -> None:
    bundle = Bundle(job)
    before = whole(bundle)
    for name, path in list(bundle_files(job)):
        if name.startswith("index/"):
            path.unlink()
    assert whole(bundle) == before
    bundle.close()


def test_a_file_that_is_truncated_in_place_is_not_given_and_kills_nobody(job: JobFile) -> None:
    bundle = Bundle(job)
    offset = bundle.manifest.offset_of(bundle.manifest.files[1])
    (job.base / "sums" / "mean.json").write_bytes(b"")
    assert bundle.piece_of(bundle.manifest, offset) is None
    assert bundle.piece_of(bundle.manifest, 0) is not None
    bundle.close()


def test_a_job_without_an_index_has_no_bundle(job: JobFile) -> None:
    (job.index_folder("dev") / "meta.json").unlink()
    assert bundle_nbytes(job) is None
    keeper = BundleKeeper(job, lambda: None)
    assert not keeper.is_ready
    assert keeper.answer(m.BundleWanted(digest="", offset=0)) is None


def test_a_keeper_makes_it_once_it_is_asked_and_answers_from_then_on(job: JobFile) -> None:
    ready = threading.Event()
    keeper = BundleKeeper(job, ready.set)
    assert not keeper.is_ready
    assert ready.wait(20)
    assert keeper.is_ready
    first = keeper.answer(m.BundleWanted(digest="", offset=0))
    assert first is not None
    assert first == keeper.answer(m.BundleWanted(digest="another", offset=77))
    last = keeper.answer(m.BundleWanted(digest=first.digest, offset=2**39))
    assert last is None
    keeper.close()


def test_whatever_is_asked_for_gets_the_bytes_that_lie_there_or_nothing(job: JobFile) -> None:
    is_made = threading.Event()
    keeper = BundleKeeper(job, is_made.set)
    assert not keeper.is_ready
    assert is_made.wait(60)
    first = keeper.answer(m.BundleWanted(digest="", offset=0))
    assert first is not None
    everything = b"".join(path.read_bytes() for _, path in bundle_files(job))
    end = first.manifest_nbytes + len(everything)

    @given(
        digest=st.sampled_from([first.digest, first.digest]) | st.text(max_size=70),
        offset=st.integers(0, 2 * end) | st.integers(0, 2**40),
    )
    def check(digest: str, offset: int) -> None:
        piece = keeper.answer(m.BundleWanted(digest=digest, offset=offset))
        if digest != first.digest:
            assert piece == first
        elif offset >= end:
            assert piece is None
        else:
            assert piece is not None
            start = offset - first.manifest_nbytes
            assert 0 < len(piece.content) <= PIECE
            if start >= 0:
                assert piece.content == everything[start : start + len(piece.content)]
            else:
                assert piece.content == first.content[offset:]
            assert decode(encode(piece)) == piece

    check()
    keeper.close()


GRAPH_JOB = """
[job]
name = "numbers"
accept_graphs = true
[streams.sent]
source = "graph"
[streams.other]
source = "graph"
"""


@pytest.fixture
def graph_job(tmp_path: Path) -> JobFile:
    (tmp_path / "job.toml").write_text(GRAPH_JOB)
    return JobFile(tmp_path / "job.toml")


def put_graph(job: JobFile, name: str) -> None:
    files = {"columns-1/digest.npy": b"12", "meta.json": meta().encode()}
    write_graph(job.graph_path(name), f"graph of {name}".encode(), job.index_folder(name), files)


def names(keeper: BundleKeeper) -> list[str]:
    assert keeper._bundle is not None
    return [file.name for file in keeper._bundle.manifest.files]


def test_a_graph_that_runs_is_in_the_next_bundle_for_which_hosts_wait(graph_job: JobFile) -> None:
    woken = threading.Event()
    put_graph(graph_job, "sent")
    keeper = BundleKeeper(graph_job, woken.set, ["sent"])
    assert not keeper.is_ready
    assert woken.wait(60)
    first = keeper.answer(m.BundleWanted(digest="", offset=0))
    assert first is not None
    before = names(keeper)
    own = ["graphs/sent/graph", "graphs/sent/index/meta.json", "graphs/sent/index/columns-1/digest.npy"]
    assert before == ["job.toml", *own]
    manifest = Manifest.decode(first.content)
    end = m.BundleWanted(digest=manifest.digest, offset=manifest.end)
    assert keeper.is_end(end)
    assert not keeper.is_end(m.BundleWanted(digest=manifest.digest, offset=manifest.end - 1))
    put_graph(graph_job, "other")
    assert keeper.is_end(end), "it does not run yet"
    woken.clear()
    keeper.add_graph("other")
    assert woken.wait(60)
    assert not keeper.is_end(end)
    assert names(keeper) == [*before, *(name.replace("sent", "other") for name in own)]
    again = keeper.answer(end)
    assert again is not None
    assert (again.offset, again.digest != manifest.digest) == (0, True)
    keeper.close()


def test_other_files_stay_as_they_were_summed_when_a_graph_comes(job: JobFile, graph_job: JobFile) -> None:
    bundle = Bundle(job)
    before = whole(bundle)[len(bundle.manifest.encoded) :]
    for name, path in list(bundle_files(job)):
        if name.startswith("index/"):
            path.unlink()
    put_graph(graph_job, "sent")
    bundle._job = graph_job
    bundle.add_graph("sent")
    content = whole(bundle)
    manifest = Manifest.decode(content[: len(bundle.manifest.encoded)])
    graph = b"graph of sent" + meta().encode() + b"12"
    at = manifest.offset_of(next(file for file in manifest.files if file.name == "graphs/sent/graph"))
    assert content[at : at + len(graph)] == graph
    assert content[len(manifest.encoded) :].replace(graph, b"") == before
    assert [file.name.split("/")[0] for file in manifest.files][:5] == ["job.toml", "files", *3 * ["graphs"]]
    bundle.close()


def test_a_graph_that_cannot_be_read_is_tried_again(graph_job: JobFile) -> None:
    woken = threading.Event()
    keeper = BundleKeeper(graph_job, woken.set, ["sent"])
    assert not keeper.is_ready
    wait_until(lambda: keeper.is_ready, "the rest of the bundle is there")
    wait_until(lambda: not keeper._thread.is_alive(), "it was tried")  # type: ignore[union-attr]
    assert names(keeper) == ["job.toml"]
    put_graph(graph_job, "sent")
    wait_until(lambda: keeper.is_ready and len(names(keeper)) == 4, "it is there")
    keeper.close()
