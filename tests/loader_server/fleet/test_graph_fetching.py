"""Graphs out of a bundle: those that are needed, together, and nothing that the coordinator does not give."""

from __future__ import annotations

from random import Random

import pytest

from loader_server.fleet.graph_fetching import GraphFetching
from loader_server.fleet.manifest import JOB_FILE
from shared.errors import DataError
from tests.loader_server.fleet.bundles import PIECE, answered, made


def files_of(stream: str, graph: bytes) -> dict[str, bytes]:
    return {f"graphs/{stream}/graph": graph, f"graphs/{stream}/index/meta.json": f"of {stream}".encode()}


FILES = {JOB_FILE: b"[job]\n", **files_of("a", b"A" * (PIECE + 1)), **files_of("b", b"B"), "index/x": bytes(PIECE)}


def fetched(fetching: GraphFetching, streams: list[str], files=FILES, manifest=None):
    found, count = [], 0
    while not fetching.waits:
        count += 1
        found += fetching.take(answered(manifest or made(files), files, fetching.wanted()))
        if not found:
            fetching.need(streams)
    return found, count


def test_of_two_streams_both_come_and_no_other_file():
    found, count = fetched(GraphFetching(), ["b", "a"])
    assert [(one.stream, one.graph[:1], one.index) for one in found] == [
        ("a", b"A", {"meta.json": b"of a"}),
        ("b", b"B", {"meta.json": b"of b"}),
    ]
    assert count == 1 + 5  # the manifest, and five pieces of four files


def test_what_nobody_needs_or_the_bundle_lacks_is_not_fetched():
    assert fetched(GraphFetching(), []) == ([], 1)
    assert fetched(GraphFetching(), ["c"]) == ([], 1)
    found, count = fetched(GraphFetching(), ["b", "c"])
    assert ([one.stream for one in found], count) == (["b"], 3)


def test_what_is_beyond_the_limit_is_not_asked_for():
    assert fetched(GraphFetching(), ["a", "b"], manifest=made(FILES, limit=10)) == ([], 1)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_only_graphs_of_some_bundle_are_handed_on(seed):
    """Pieces of two bundles, wrong bytes and stale answers, at random."""
    random, fetching = Random(seed), GraphFetching()
    other = {**FILES, **files_of("b", b"another B")}
    given = {bytes(files[f"graphs/{stream}/graph"]) for files in (FILES, other) for stream in "ab"}
    bundles = [
        (files, {name: bytes(len(content)) for name, content in files.items()}, made(files)) for files in (FILES, other)
    ]
    stale, handed_on = [], 0
    for _ in range(300):
        if fetching.waits:
            fetching = GraphFetching()
        files, wrong, manifest = random.choices(bundles, weights=(3, 1))[0]
        stale.append(answered(manifest, wrong if random.random() < 0.05 else files, fetching.wanted()))
        try:
            found = fetching.take(random.choice(stale) if random.random() < 0.1 else stale[-1])
        except DataError:
            fetching, found = GraphFetching(), []
        assert {one.graph for one in found} <= given
        handed_on += len(found)
        if not found:
            fetching.need(["a", "b"])
    assert handed_on
