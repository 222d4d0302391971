"""A request for an index: how large its pieces are, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loader_server.index.request import IndexRequest
from loader_server.sources.source import Source
from loader_server.transforms.chain import Chain
from shared.bad_limit import BadLimit
from shared.errors import DataError
from shared.wire.batch_layout import Field
from tests.support.sources import spec_of

if TYPE_CHECKING:
    from pathlib import Path

_RAW = (Field(key="audio", dtype="float32", shape=(None,)),)
_UNDECLARED = Chain.make(("tests.support.transforms:undeclared",), {}, "job", _RAW)
_DECLARED = Chain.make(("logmel",), {}, "job", _RAW)


@pytest.fixture
def request_of(tmp_path: Path):
    def make(**how: Any) -> IndexRequest:
        spec = spec_of("manifest", tmp_path, paths=["a.csv"])
        return IndexRequest(**{"folder": tmp_path / "index", "spec": spec, "source": spec.make(), **how})

    return make


def test_few_pieces_are_left_to_one_process_and_fewer_still_if_lengths_are_measured(request_of, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert [request_of().processes_for(pieces) for pieces in (4, 5, 8, 9)] == [1, 1, 1, 6]
    assert [request_of(chain=_UNDECLARED).processes_for(pieces) for pieces in (4, 5)] == [1, 6]
    assert request_of(processes=3).processes_for(9) == 3
    assert request_of(processes=3, piece_rows=1).processes_for(1) == 3


def test_pieces_are_as_large_as_suits_the_source_and_smaller_if_lengths_are_measured(request_of):
    assert request_of().rows_a_piece == Source.piece_rows
    assert request_of(chain=_DECLARED).rows_a_piece == Source.piece_rows
    assert request_of(chain=_UNDECLARED).rows_a_piece == Source.measured_rows < Source.piece_rows
    assert request_of(chain=_UNDECLARED, piece_rows=7).rows_a_piece == 7


def test_one_bad_row_is_refused_if_it_is_strict_and_else_more_than_the_limit(request_of):
    assert not request_of().refuses({"missing_file": 9}, 10)
    assert request_of(strict=True).refuses({"missing_file": 1}, 10)
    assert not request_of(strict=True).refuses({}, 10)
    limited = request_of(max_bad=BadLimit(samples=2))
    assert not limited.refuses({"missing_file": 1, "duplicate": 1}, 10)
    assert limited.refuses({"missing_file": 1, "duplicate": 2}, 10)


def test_only_transforms_that_look_at_samples_while_indexing_have_a_recipe_in_it(request_of):
    assert request_of().recipe == request_of(chain=_DECLARED).recipe == ""
    assert request_of(chain=_UNDECLARED).recipe == _UNDECLARED.recipe


def test_lengths_that_have_to_be_measured_are_refused_where_no_sample_is_read(request_of, monkeypatch):
    monkeypatch.setattr("loader_server.sources.manifest.source.ManifestSource.measurable", False)
    request_of(chain=_DECLARED).refuse_measuring()
    with pytest.raises(DataError, match="transforms that declare their outputs"):
        request_of(chain=_UNDECLARED).refuse_measuring()
    assert request_of(chain=_UNDECLARED).recipe == ""
