"""Streams that are opened late: as soon as their files are there, in a thread, or fetched in pieces before."""

import threading

import msgpack
import pytest

from loader_server.worker.late_streams import LateStreams
from shared.errors import DataError
from shared.pipelines.sent_graph import digest_of_graph
from shared.wire import messages as m
from tests.support.another_user import as_another_user, folder_for_all

PACKED = msgpack.packb([b"graph", [["columns-1/digest.npy", bytes(40_000)], ["meta.json", b"{}"]]])
DIGEST = digest_of_graph(PACKED)


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
        self.late = LateStreams(self.job, self._open, self.woken.set)
        self._now_s = 0.0

    def _open(self, name):
        if self.fails:
            self.fails -= 1
            raise DataError(expected="an index of this graph", got="another", where="here", remedy="Wait.")
        return f"builder of {name}"

    def look(self):
        self._now_s += 1
        return self.late.look(self._now_s)

    def opened(self):
        assert self.woken.wait(60)
        self.woken.clear()
        return self.late.take_opened()


@pytest.fixture
def worker(tmp_path):
    return Worker(tmp_path)


def piece(wanted, content=PACKED, digest=DIGEST):
    part = content[wanted.offset : wanted.offset + 2**15]
    return m.GraphPiece(stream="sent", digest=digest, nbytes=len(content), offset=wanted.offset, content=part)


def put_files(job):
    job.graph_path("sent").write_bytes(b"graph")
    job.index_folder("sent").mkdir()
    (job.index_folder("sent") / "meta.json").write_text("{}")


def test_only_what_is_not_there_is_awaited_and_asked_for(worker):
    assert worker.late.awaited == {"sent"}
    assert worker.look() == [m.GraphWanted(stream="sent", digest="", offset=0)]
    assert worker.late.look(worker._now_s + 0.1) == [], "now and then"


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


def test_it_is_fetched_piece_by_piece(worker):
    (wanted,) = worker.look()
    (more,) = worker.late.take_pieces([piece(wanted)])
    assert more == m.GraphWanted(stream="sent", digest=DIGEST, offset=2**15)
    assert worker.look() == [more], "said again if nothing comes"
    assert worker.late.take_pieces([piece(wanted), piece(more)]) == [more], "twice the same is once"
    assert worker.job.graph_path("sent").read_bytes() == b"graph"
    worker.look()
    assert worker.opened() == ["builder of sent"]


def test_another_graph_in_between_begins_anew(worker):
    (wanted,) = worker.look()
    worker.late.take_pieces([piece(wanted, digest="of another")])
    (more,) = worker.late.take_pieces([piece(wanted)])
    assert more.digest == DIGEST
    worker.late.take_pieces([piece(more)])
    assert worker.job.is_there("sent")


def test_bytes_that_do_not_match_their_digest_or_are_no_graph_are_not_kept(worker):
    (wanted,) = worker.look()
    other = msgpack.packb([b"another", [["meta.json", b"{}"]]])
    worker.late.take_pieces([piece(wanted, content=other)])
    worker.late.take_pieces([piece(wanted, content=b"no graph", digest=digest_of_graph(b"no graph"))])
    assert not worker.job.graph_path("sent").exists()
    assert worker.look() == [m.GraphWanted(stream="sent", digest="", offset=0)]


@pytest.mark.fault(66)
def test_a_closed_folder_is_said_once_and_tried_again(caplog):
    with folder_for_all() as folder:
        worker = Worker(folder)
        with as_another_user():
            for _ in range(2):
                (wanted,) = worker.look()
                (more,) = worker.late.take_pieces([piece(wanted)])
                worker.late.take_pieces([piece(more)])
        assert caplog.text.count("graph cannot be kept") == 1
        assert f"{folder} of user 0 with mode 755" in caplog.text
        (wanted,) = worker.look()
        (more,) = worker.late.take_pieces([piece(wanted)])
        worker.late.take_pieces([piece(more)])
        assert worker.job.graph_path("sent").read_bytes() == b"graph"


def test_pieces_of_streams_that_are_open_are_ignored(worker):
    put_files(worker.job)
    worker.look()
    worker.opened()
    assert worker.late.take_pieces([piece(m.GraphWanted(stream="sent", digest="", offset=0))]) == []
