"""Graphs on the coordinator's disk: what cannot be run leaves nothing."""

import threading

import pytest

from loader_server.coordinator.events import GraphFailed
from loader_server.coordinator.graph_keeper import GraphKeeper, kept_graphs
from loader_server.job_file import JobFile
from loader_server.machine.graph_files import write_synced
from shared.errors import SettingsError
from shared.pipelines.element_values import digest_of_graph

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
