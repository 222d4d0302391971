"""The fingerprint of a job's builders: of every stream, by name, whatever their order."""

from types import SimpleNamespace

from loader_server.building.fingerprint import builder_fingerprint

TRAIN, DEV = SimpleNamespace(digest="d1", builder="b1"), SimpleNamespace(digest="d2", builder="b2")


def test_the_order_of_the_streams_does_not_matter():
    assert builder_fingerprint({"train": TRAIN, "dev": DEV}) == builder_fingerprint({"dev": DEV, "train": TRAIN})


def test_whatever_differs_is_another_fingerprint():
    jobs = (
        {"train": TRAIN},
        {"dev": TRAIN},
        {"train": DEV},
        {"train": SimpleNamespace(digest="d1", builder="b2")},
        {"train": SimpleNamespace(digest="d2", builder="b1")},
        {"train": TRAIN, "dev": DEV},
    )
    assert len({builder_fingerprint(job) for job in jobs}) == len(jobs)
