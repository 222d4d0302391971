"""Graphs on the coordinator's disk: what cannot be run leaves nothing; what there is, workers get in pieces."""

import threading

import pytest

from loader_server.coordinator.events import GraphFailed
from loader_server.coordinator.graphs.graph_keeper import GraphKeeper, kept_graphs
from loader_server.job_file import JobFile
from loader_server.machine.graph_files import pack, write_synced
from shared.errors import SettingsError
from shared.pipelines.sent_graph import digest_of_graph
from shared.wire import messages as m
from tests.loader_server.machine.test_graph_files import meta

JOB = """
[job]
name = "numbers"
accept_graphs = {accept}
[streams.sent]
source = "graph"
"""


@pytest.fixture
def job(tmp_path):
    (tmp_path / "job.toml").write_text(JOB.format(accept="true"))
    return JobFile(tmp_path / "job.toml")


def keeper(job, tell=print):
    return GraphKeeper(job, lambda stream: stream, tell)


def test_a_job_has_to_say_that_it_accepts_graphs(tmp_path):
    (tmp_path / "job.toml").write_text(JOB.format(accept="false"))
    with pytest.raises(SettingsError, match=r"\[streams.sent\]: expected accept_graphs = true .*read and write files"):
        JobFile(tmp_path / "job.toml")


def test_until_it_comes_there_is_nothing_to_index_or_to_open(job):
    assert (job.accepting, job.is_awaited("sent"), job.is_there("sent")) == (("sent",), True, False)
    assert kept_graphs(job) == {"sent": ""}
    assert keeper(job).piece(m.GraphWanted(stream="sent", digest="", offset=0)) is None
    assert keeper(job).piece(m.GraphWanted(stream="another", digest="", offset=0)) is None
    write_synced(job.graph_path("sent"), b"graph")
    assert (job.is_awaited("sent"), job.is_there("sent")) == (False, False)
    assert kept_graphs(job) == {"sent": digest_of_graph(b"graph")}


def test_what_cannot_be_run_is_removed_and_told(job):
    index = job.index_folder("sent") / "meta.json"
    write_synced(index, b"of the graph before")
    told, done = [], threading.Event()
    keeper(job, lambda event: (told.append(event), done.set())).run("sent", b"no graph")
    assert done.wait(60)
    (failed,) = told
    assert isinstance(failed, GraphFailed)
    assert "expected a graph as a trainer sends it" in failed.reason
    assert not job.graph_path("sent").exists()
    assert not index.exists(), "it is of another graph"


def test_workers_of_other_machines_get_it_in_pieces(job):
    index = job.index_folder("sent")
    write_synced(job.graph_path("sent"), bytes(range(256)) * 200)
    write_synced(index / "columns-1" / "digest.npy", b"12")
    write_synced(index / "meta.json", meta().encode())
    one = keeper(job)
    piece = one.piece(m.GraphWanted(stream="sent", digest="", offset=0))
    content = piece.content
    while len(content) < piece.nbytes:
        piece = one.piece(m.GraphWanted(stream="sent", digest=piece.digest, offset=len(content)))
        assert piece.offset == len(content)
        content += piece.content
    assert content == pack(job.graph_path("sent"), index)
    assert piece.digest == digest_of_graph(content)
    assert one.piece(m.GraphWanted(stream="sent", digest="of another", offset=9)).offset == 0
