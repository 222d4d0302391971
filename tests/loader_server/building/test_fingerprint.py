"""The fingerprint of a job's builders: of every stream, by name, whatever their order."""

from types import SimpleNamespace

from loader_server.building.fingerprint import builder_fingerprint

TRAIN, DEV = SimpleNamespace(digest="d1", builder="b1"), SimpleNamespace(digest="d2", builder="b2")


def test_the_order_of_the_streams_does_not_matter():
    there, back = {"train": TRAIN, "dev": DEV}, {"dev": DEV, "train": TRAIN}
    assert builder_fingerprint(there, {}) == builder_fingerprint(back, {})


def test_whatever_differs_is_another_fingerprint():
    jobs = (
        {"train": TRAIN},
        {"dev": TRAIN},
        {"train": DEV},
        {"train": SimpleNamespace(digest="d1", builder="b2")},
        {"train": SimpleNamespace(digest="d2", builder="b1")},
        {"train": TRAIN, "dev": DEV},
    )
    assert len({builder_fingerprint(job, {}) for job in jobs}) == len(jobs)


def test_of_a_stream_that_is_sent_counts_what_is_known_before_it_comes():
    both, one = {"train": TRAIN, "dev": DEV}, {"dev": DEV}
    assert builder_fingerprint(both, {"train": "tf 2"}) == builder_fingerprint(one, {"train": "tf 2"})
    assert builder_fingerprint(both, {"train": "tf 2"}) != builder_fingerprint(both, {"train": "tf 3"})
    assert builder_fingerprint(both, {"train": "tf 2"}) != builder_fingerprint(both, {})
