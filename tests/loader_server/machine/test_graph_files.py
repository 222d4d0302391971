"""The files of a graph: each whole or not there, and the graph last."""

import json

import pytest

from loader_server.index.folder import FORMAT
from loader_server.machine import graph_files
from loader_server.machine.graph_files import write_graph

FILES = {"meta.json": b"{}", "columns-1/digest.npy": b"12"}


def meta(**other):
    own = {name: [] for name in ("origin", "numbers", "strings", "measured", "fields")}
    said = {"format": FORMAT, "source": "graph", "settings": {}, "folder": "columns-1", "samples": 2, **own}
    return json.dumps({**said, "recipe": "", "bad": {}, "fingerprint": "f", "about": {}, **other})


def test_all_are_written(tmp_path):
    graph, index = tmp_path / "graphs" / "train.graph", tmp_path / "index"
    write_graph(graph, b"graph", index, FILES)
    assert graph.read_bytes() == b"graph"
    assert {str(path.relative_to(index)): path.read_bytes() for path in index.rglob("*") if path.is_file()} == FILES
    assert list(graph.parent.iterdir()) == [graph]


@pytest.mark.parametrize("count", range(3))
def test_after_a_cut_the_graph_is_not_there_without_its_index(tmp_path, monkeypatch, count):
    written = []
    write = graph_files.write_synced

    def cut(path, content):
        if len(written) == count:
            raise OSError("full")
        written.append(path.name)
        write(path, content)

    monkeypatch.setattr(graph_files, "write_synced", cut)
    with pytest.raises(OSError, match="full"):
        write_graph(tmp_path / "graph", b"graph", tmp_path / "index", FILES)
    assert written == ["digest.npy", "meta.json"][:count]
