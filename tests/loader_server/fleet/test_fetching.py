"""The joining host's half: what is asked for, what is accepted, what becomes of anything else; graphs alone."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from loader_server.fleet.fetching import Fetching, GraphFetching
from loader_server.fleet.manifest import JOB_FILE
from shared.errors import DataError
from shared.wire import messages as m
from tests.loader_server.fleet.bundles import FILES, PIECE, answered, made

OTHER = {**FILES, "index/index-train/meta.json": b'{"other": 1}'}


def fetched(fetching, manifest, files=FILES):
    """All that comes, until nothing is wanted."""
    found = {name: bytearray(len(content)) for name, content in files.items()}
    while (wanted := fetching.wanted()) is not None:
        piece = fetching.take(answered(manifest, files, wanted))
        if piece is not None:
            found[piece.file.name][piece.start : piece.start + len(piece.content)] = piece.content
        elif fetching.manifest is not None and fetching.left_nbytes == 0:
            fetching.need(dict.fromkeys(files, 0))
    return {name: bytes(content) for name, content in found.items()}


def with_manifest(manifest=None, files=FILES):
    manifest, fetching = manifest or made(), Fetching()
    while fetching.manifest is None:
        fetching.take(answered(manifest, files, fetching.wanted()))
    return manifest, fetching


def test_everything_comes_in_order_and_once():
    manifest = made()
    assert fetched(Fetching(), manifest) == FILES


def test_nothing_is_asked_for_before_it_is_known_what_is_lacking():
    _, fetching = with_manifest()
    assert fetching.wanted() is None


def test_what_is_here_already_is_not_asked_for_again():
    manifest, fetching = with_manifest()
    last = manifest.files[-1]
    fetching.need({last.name: 2})
    assert fetching.left_nbytes == 4
    assert fetching.wanted() == m.BundleWanted(digest=manifest.digest, offset=manifest.offset_of(last) + 2 * PIECE)
    assert fetching.take(answered(manifest, FILES, fetching.wanted())).content == b"tail"
    assert fetching.wanted() is None


def test_a_piece_that_was_not_asked_for_is_left_out():
    manifest, fetching = with_manifest()
    fetching.need({manifest.files[-1].name: 0})
    wanted = fetching.wanted()
    late = answered(manifest, FILES, dataclasses.replace(wanted, offset=0))
    assert fetching.take(late) is None
    assert fetching.wanted() == wanted


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content[:-1] + b"?", lambda _: b""])
def test_wrong_bytes_are_asked_for_again_and_are_an_error_in_the_end(change):
    manifest, fetching = with_manifest()
    fetching.need({"job.toml": 0})
    right = answered(manifest, FILES, fetching.wanted())
    wrong = dataclasses.replace(right, content=change(right.content))
    assert fetching.take(wrong) is None
    assert fetching.take(wrong) is None
    with pytest.raises(DataError, match=r"job\.toml"):
        fetching.take(wrong)


def test_a_manifest_that_its_digest_does_not_name_is_an_error_in_the_end():
    manifest, fetching = made(), Fetching()
    right = answered(manifest, FILES, fetching.wanted())
    wrong = dataclasses.replace(right, content=right.content[:-1] + b"?")
    for _ in range(2):
        fetching.take(wrong)
        assert fetching.manifest is None
        assert fetching.wanted().offset == 0
    with pytest.raises(DataError, match="the manifest"):
        fetching.take(wrong)


def test_an_empty_piece_of_the_manifest_brings_nothing():
    manifest, fetching = made(), Fetching()
    piece = dataclasses.replace(answered(manifest, FILES, fetching.wanted()), content=b"")
    fetching.take(piece)
    assert fetching.manifest is None


@pytest.mark.parametrize("at", range(8))
def test_another_bundle_in_between_begins_anew_and_comes_whole(at):
    """The coordinator was started again after its index was made anew."""
    first, second, fetching = made(), made(OTHER), Fetching()
    for _ in range(at):
        wanted = fetching.wanted()
        fetching.take(answered(first, FILES, wanted))
        if fetching.wanted() is None:
            fetching.need(dict.fromkeys(FILES, 0))
        if fetching.wanted() is None:
            break
    if fetching.wanted() is None:
        return
    assert fetched(fetching, second, OTHER) == OTHER
    assert fetching.manifest == second


@pytest.mark.parametrize("seed", range(200))
def test_whatever_comes_only_right_bytes_are_accepted(seed):
    """Answers that are lost, doubled, late, of another bundle, or damaged."""
    random = Random(seed)
    bundles = [(made(), FILES), (made(OTHER), OTHER)]
    fetching, kept = Fetching(), []
    for _ in range(60):
        wanted = fetching.wanted()
        if wanted is None:
            assert fetching.manifest is not None
            fetching.need(dict.fromkeys(FILES, 0))
            continue
        manifest, files = bundles[random.random() < 0.2]
        piece = answered(manifest, files, wanted)
        kept.append(piece)
        if random.random() < 0.3:
            piece = random.choice(kept)
        if random.random() < 0.1:
            piece = dataclasses.replace(piece, content=random.randbytes(random.randint(0, 600)))
        try:
            arrived = fetching.take(piece)
        except DataError:
            return
        if arrived is not None:
            source = next(files for manifest, files in bundles if manifest == fetching.manifest)
            assert source[arrived.file.name][arrived.start : arrived.start + PIECE] == arrived.content


def files_of(stream: str, graph: bytes) -> dict[str, bytes]:
    return {f"graphs/{stream}/graph": graph, f"graphs/{stream}/index/meta.json": f"of {stream}".encode()}


GRAPH_FILES = {
    JOB_FILE: b"[job]\n",
    **files_of("a", b"A" * (PIECE + 1)),
    **files_of("b", b"B"),
    "index/x": bytes(PIECE),
}


def fetched_graphs(fetching: GraphFetching, streams: list[str], files=GRAPH_FILES, manifest=None):
    found, count = [], 0
    while not fetching.waits:
        count += 1
        found += fetching.take(answered(manifest or made(files), files, fetching.wanted()))
        if not found:
            fetching.need(streams)
    return found, count


def test_of_two_streams_both_come_and_no_other_file():
    found, count = fetched_graphs(GraphFetching(), ["b", "a"])
    assert [(one.stream, one.graph[:1], one.index) for one in found] == [
        ("a", b"A", {"meta.json": b"of a"}),
        ("b", b"B", {"meta.json": b"of b"}),
    ]
    assert count == 1 + 5  # the manifest, and five pieces of four files


def test_what_nobody_needs_or_the_bundle_lacks_is_not_fetched():
    assert fetched_graphs(GraphFetching(), []) == ([], 1)
    assert fetched_graphs(GraphFetching(), ["c"]) == ([], 1)
    found, count = fetched_graphs(GraphFetching(), ["b", "c"])
    assert ([one.stream for one in found], count) == (["b"], 3)


def test_what_is_beyond_the_limit_is_not_asked_for():
    assert fetched_graphs(GraphFetching(), ["a", "b"], manifest=made(GRAPH_FILES, limit=10)) == ([], 1)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_only_graphs_of_some_bundle_are_handed_on(seed):
    """Pieces of two bundles, wrong bytes and stale answers, at random."""
    random, fetching = Random(seed), GraphFetching()
    other = {**GRAPH_FILES, **files_of("b", b"another B")}
    given = {bytes(files[f"graphs/{stream}/graph"]) for files in (GRAPH_FILES, other) for stream in "ab"}
    bundles = [
        (files, {name: bytes(len(content)) for name, content in files.items()}, made(files))
        for files in (GRAPH_FILES, other)
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
