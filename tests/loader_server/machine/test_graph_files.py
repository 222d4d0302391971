"""A graph and its index as bytes: what one machine packs another unpacks, and nothing else is written."""

import json
import re

import msgpack
import pytest

from loader_server.machine.graph_files import pack, unpack
from loader_server.sources.index.folder import FORMAT
from shared.errors import DataError


def meta(**other):
    own = {name: [] for name in ("origin", "numbers", "strings", "measured", "fields")}
    said = {"format": FORMAT, "source": "graph", "settings": {}, "folder": "columns-1", "samples": 2, **own}
    return json.dumps({**said, "recipe": "", "bad": {}, "fingerprint": "f", "about": {}, **other})


@pytest.fixture
def packed(tmp_path):
    columns = tmp_path / "index" / "columns-1"
    columns.mkdir(parents=True)
    (columns / "digest.npy").write_bytes(b"12")
    (tmp_path / "index" / "meta.json").write_text(meta())
    (tmp_path / "index" / "made_first").mkdir()
    (tmp_path / "train.graph").write_bytes(b"graph")
    return pack(tmp_path / "train.graph", tmp_path / "index")


def test_another_machine_gets_the_same_files(packed, tmp_path):
    graph, index = tmp_path / "b" / "graphs" / "train.graph", tmp_path / "b" / "index"
    unpack(packed, graph, index)
    assert graph.read_bytes() == b"graph"
    assert (index / "meta.json").read_text() == meta()
    assert (index / "columns-1" / "digest.npy").read_bytes() == b"12"
    assert sorted(path.name for path in index.iterdir()) == ["columns-1", "meta.json"]
    assert list(graph.parent.iterdir()) == [graph]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../x", "a/b/c", ".x", "", "columns-1/../x"])
def test_names_that_lead_elsewhere_are_refused(name, tmp_path):
    content = msgpack.packb([b"graph", [[name, b""], ["meta.json", b"{}"]]])
    with pytest.raises(DataError, match=re.escape("coordinator: expected a graph and its index")):
        unpack(content, tmp_path / "graph", tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\xc1", msgpack.packb([b"graph", []]), msgpack.packb([b"g", [["x", b""]]])])
def test_other_bytes_are_refused(content, tmp_path):
    with pytest.raises(DataError, match="expected a graph and its index"):
        unpack(content, tmp_path / "graph", tmp_path / "index")
