"""Streams that are opened late: as soon as their files are there, in a thread, or fetched from the bundle before."""

import threading

import pytest

from loader_server.fleet.manifest import JOB_FILE
from loader_server.worker.late_streams import LateStreams
from shared.errors import DataError
from shared.wire import messages as m
from tests.loader_server.fleet.bundles import PIECE, answered, made
from tests.support.another_user import as_another_user, folder_for_all

BEFORE = {JOB_FILE: b"[job]\n", "index/index-train/meta.json": bytes(3 * PIECE)}
GRAPH = {
    "graphs/sent/graph": b"graph" + bytes(PIECE),
    "graphs/sent/index/meta.json": b"{}",
    "graphs/sent/index/columns-1/digest.npy": b"",
}
AFTER = {JOB_FILE: BEFORE[JOB_FILE], **GRAPH, **BEFORE}


class Job:
    """In a JobFile's place: a stream of files, and one of a graph."""

    recipes = ("train", "sent")

    def __init__(self, folder):
        self._folder = folder

    def is_there(self, name):
        return name == "train" or (self.graph_path(name).exists() and (self.index_folder(name) / "meta.json").exists())

    def graph_path(self, name):
        return self._folder / f"{name}.graph"

    def index_folder(self, name):
        return self._folder / f"index-{name}"


class Worker:
    def __init__(self, folder):
        self.job = Job(folder)
        self.woken = threading.Event()
        self.fails = 0
        self.error = DataError(expected="an index of this graph", got="another", where="here", remedy="Wait.")
        self.late = LateStreams(self.job, self._open, self.woken.set)
        self.now_s = 0.0

    def _open(self, name):
        if self.fails:
            self.fails -= 1
            raise self.error
        return f"builder of {name}"

    def look(self):
        self.now_s += 6
        return self.late.look(self.now_s)

    def take(self, *pieces):
        return self.late.take_pieces(pieces, self.now_s)

    def opened(self):
        assert self.woken.wait(60)
        self.woken.clear()
        return self.late.take_opened()


@pytest.fixture
def worker(tmp_path):
    return Worker(tmp_path)


def put_files(job):
    job.graph_path("sent").write_bytes(b"graph")
    job.index_folder("sent").mkdir()
    (job.index_folder("sent") / "meta.json").write_text("{}")


def fetch(worker, asked, files):
    """Answer from these files until nothing is asked for; which offsets were, after the manifest."""
    manifest, offsets = made(files), []
    while asked and asked[0] != end(files):
        (wanted,) = asked
        offsets.append(wanted.offset)
        asked = worker.take(answered(manifest, files, wanted))
    return offsets[1:]


def end(files):
    manifest = made(files)
    return m.BundleWanted(digest=manifest.digest, offset=manifest.end)


def test_only_what_is_not_there_is_awaited_and_asked_for(worker):
    assert worker.late.awaited == {"sent"}
    assert worker.look() == [m.BundleWanted(digest="", offset=0)]
    assert worker.late.look(worker.now_s + 0.6) == [], "now and then"
    assert worker.late.look(worker.now_s + 1.2) == [m.BundleWanted(digest="", offset=0)]


def test_files_that_another_process_put_there_are_opened_without_asking(worker):
    put_files(worker.job)
    assert worker.look() == []
    assert worker.opened() == ["builder of sent"]
    assert worker.late.awaited == set()
    assert worker.look() == []


def test_what_cannot_be_opened_yet_is_tried_again(worker):
    put_files(worker.job)
    worker.fails = 1
    worker.look()
    assert worker.opened() == []
    assert worker.late.awaited == {"sent"}
    worker.look()
    assert worker.opened() == ["builder of sent"]


def test_a_stream_is_tried_again_after_any_error(worker, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _error: None)  # pytest's own fails the next test
    worker.fails, worker.error = 1, ImportError("no library yet")
    put_files(worker.job)
    worker.look()
    assert worker.opened() == []
    worker.look()
    assert worker.opened() == ["builder of sent"]


def test_of_the_bundle_only_its_files_are_fetched(worker):
    manifest = made(AFTER)
    graph = manifest.offset_of(next(file for file in manifest.files if file.name == "graphs/sent/graph"))
    offsets = fetch(worker, worker.look(), AFTER)
    assert offsets == [graph, graph + PIECE, graph + PIECE + 5]
    assert worker.job.graph_path("sent").read_bytes() == GRAPH["graphs/sent/graph"]
    assert (worker.job.index_folder("sent") / "columns-1" / "digest.npy").read_bytes() == b""
    assert worker.look() == []
    assert worker.opened() == ["builder of sent"]


def test_a_bundle_without_it_is_waited_out(worker):
    assert fetch(worker, worker.look(), BEFORE) == []
    asked = worker.look()
    assert asked == [end(BEFORE)]
    assert worker.late.look(worker.now_s + 0.3) == []
    assert worker.late.look(worker.now_s + 0.6) == asked
    assert fetch(worker, worker.take(answered(made(AFTER), AFTER, asked[0])), AFTER)
    assert worker.job.is_there("sent")


def test_a_piece_that_does_not_come_is_asked_for_again(worker):
    (wanted,) = worker.look()
    (more,) = worker.take(answered(made(AFTER), AFTER, wanted))
    assert worker.late.look(worker.now_s + 4) == []
    assert worker.late.look(worker.now_s + 5.1) == [more]
    piece = answered(made(AFTER), AFTER, more)
    (third,) = worker.take(piece, piece)
    assert third.offset == more.offset + PIECE, "twice the same is once"


def test_another_bundle_in_between_begins_anew(worker):
    (wanted,) = worker.look()
    other = {**AFTER, "graphs/sent/graph": b"another"}
    (more,) = worker.take(answered(made(other), other, wanted))
    assert fetch(worker, [more], AFTER)
    assert worker.job.graph_path("sent").read_bytes() == GRAPH["graphs/sent/graph"]


def test_bytes_that_the_manifest_does_not_name_are_not_kept_and_do_not_end_the_worker(worker):
    asked = worker.look()
    manifest = made(AFTER)
    wrong = {**AFTER, "graphs/sent/graph": b"other" + bytes(PIECE)}
    (asked,) = worker.take(answered(manifest, AFTER, asked[0]))
    for _ in range(3):
        worker.take(answered(manifest, wrong, asked))
        assert not worker.job.graph_path("sent").exists()
    assert worker.look() == [m.BundleWanted(digest="", offset=0)], "from the beginning"
    assert fetch(worker, [m.BundleWanted(digest="", offset=0)], AFTER)
    assert worker.job.is_there("sent")


def test_what_cannot_be_kept_is_fetched_again_later(worker):
    worker.job.index_folder("sent").write_text("in the way")
    assert fetch(worker, worker.look(), AFTER)
    assert not worker.job.graph_path("sent").exists()
    worker.job.index_folder("sent").unlink()
    assert fetch(worker, worker.look(), AFTER) is not None
    assert worker.job.is_there("sent")


@pytest.mark.fault(66)
def test_a_closed_folder_is_said_once_and_tried_again(caplog):
    with folder_for_all() as folder:
        worker = Worker(folder)
        with as_another_user():
            for _ in range(2):
                fetch(worker, worker.look(), AFTER)
        assert caplog.text.count("graph cannot be kept") == 1
        assert f"{folder} of user 0 with mode 755" in caplog.text
        fetch(worker, worker.look(), AFTER)
        assert worker.job.graph_path("sent").read_bytes() == GRAPH["graphs/sent/graph"]


def test_pieces_are_ignored_once_all_streams_are_open(worker):
    put_files(worker.job)
    worker.look()
    worker.opened()
    assert worker.take(answered(made(AFTER), AFTER, m.BundleWanted(digest="", offset=0))) == []
