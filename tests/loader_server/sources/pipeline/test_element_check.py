"""Elements have to fit, and to be those that were made first; the first to make an element decides for all."""

import numpy as np
import pytest

from loader_server.sources.pipeline.element_check import ElementCheck, FirstDigests
from shared.errors import DataError
from shared.pipelines.element_values import digest_of


def element(n, size=2):
    return {"n:values": np.full(size, n), "n:shape": np.array([size])}


@pytest.fixture
def check(tmp_path):
    """Of two shards that had two elements and one while indexing."""
    digests = np.array([digest_of(element(n)) for n in (10, 11, 20)])
    return ElementCheck(
        where="job", most_steps={"n:values": 3}, exact=True, shards=np.array([0, 0, 1]), digests=digests,
        first=FirstDigests(tmp_path, "job"),
    )  # fmt: skip


def test_epoch_0_is_what_it_was_while_indexing(check):
    for shard, ordinal, n in ((0, 0, 10), (0, 1, 11), (1, 0, 20)):
        check.check(0, shard, ordinal, element(n))
        with pytest.raises(
            DataError, match=rf"^job, element {ordinal} of shard {shard} of epoch 0: expected the element"
        ):
            check.check(0, shard, ordinal, element(n + 1))


def test_other_epochs_are_what_they_were_when_they_were_made_first(check):
    check.check(1, 0, 0, element(5))
    check.check(1, 0, 0, element(5))
    with pytest.raises(DataError, match=r"of epoch 1: .*stateless_uniform .* replay = "):
        check.check(1, 0, 0, element(6))


def test_an_element_beyond_what_was_counted_goes_by_who_made_it_first(check):
    check.check(0, 0, 2, element(20))
    with pytest.raises(DataError, match="another one"):
        check.check(0, 0, 2, element(21))


def test_an_element_that_slots_have_no_room_for_is_refused(check):
    check.check(1, 0, 0, element(5, size=3))
    with pytest.raises(DataError, match=r'expected at most 3 values of "n", .*, got 4\. .* largest = '):
        check.check(1, 0, 1, element(5, size=4))


def test_the_first_to_make_an_element_decides_for_all(tmp_path):
    one, other = (FirstDigests(tmp_path / "made", "job") for _ in range(2))
    assert one.first(3, 1, 5, 77) == 77
    assert other.first(3, 1, 5, 78) == 77
    assert [other.first(3, 1, ordinal, 9) for ordinal in (4, 6)] == [9, 9]
    assert other.first(3, 0, 5, 8) == other.first(4, 1, 5, 8) == 8
    assert FirstDigests(tmp_path / "made", "other job").first(3, 1, 5, 80) == 80


def test_the_newest_epochs_are_kept(tmp_path):
    digests = FirstDigests(tmp_path / "made", "job")
    FirstDigests(tmp_path / "made", "what the job was before").first(0, 0, 0, 1)
    for epoch in range(9):
        digests.first(epoch, 0, 0, 50 + epoch)
    assert digests.first(8, 0, 0, 1) == 58
    names = sorted(path.name for path in (tmp_path / "made").iterdir())
    assert names == [f"job-{epoch}-0" for epoch in range(4, 9)]


def test_a_folder_that_cannot_be_written_costs_the_check(tmp_path, caplog):
    (tmp_path / "made").touch()
    digests = FirstDigests(tmp_path / "made", "job")
    assert [digests.first(0, 0, 0, digest) for digest in (5, 6)] == [5, 6]
    assert caplog.text.count("elements are not compared") == 1
