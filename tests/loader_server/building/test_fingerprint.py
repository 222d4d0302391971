"""The fingerprint of a job's builders: of every stream, by name, whatever their order."""

from types import SimpleNamespace

import pytest

from loader_server.building.fingerprint import builder_fingerprint, builder_parts, differing_parts

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


OWN = (
    ("index of stream train", "i1"),
    ("plan of stream train (its settings)", "p1"),
    ("transform augment of stream train (its settings or code)", "t1"),
    ("all transforms of stream train", "a1"),
    ("package numpy", "2.2.0"),
    ("processor", "x86_64 avx2"),
)


def differing(**changed):
    others = dict(OWN) | {name.replace("_", " "): value for name, value in changed.items()}
    return differing_parts(OWN, [(name, value) for name, value in others.items() if value is not None])


def test_nothing_differs_from_itself():
    assert differing_parts(OWN, OWN) == []


def test_packages_and_the_processor_are_named_with_both_values():
    assert differing(package_numpy="2.1.0", all_transforms_of_stream_train="a2") == [
        "package numpy (2.2.0 on the coordinator's machine, 2.1.0 on the worker's)"
    ]
    assert differing(processor="aarch64", package_soxr="1.0") == [
        "processor (x86_64 avx2 on the coordinator's machine, aarch64 on the worker's)",
        "package soxr (none on the coordinator's machine, 1.0 on the worker's)",
    ]


@pytest.mark.fault(68)
def test_the_release_counts_only_where_bytes_or_plans_of_two_versions_differ():
    versions = (("version of Stoker's bytes", "2"), ("version of Stoker's plans", "2"), ("release of Stoker", "0.1.0"))
    theirs = dict(OWN + versions)

    def told(**changed):
        return differing_parts(OWN + versions, (theirs | changed).items())

    release = "release of Stoker (0.1.0 on the coordinator's machine, 0.2.0 on the worker's)"
    assert told(**{"release of Stoker": "0.2.0"}) == []
    assert told(**{"release of Stoker": "0.2.0", "processor": "arm"}) == [
        "processor (x86_64 avx2 on the coordinator's machine, arm on the worker's)"
    ]
    other = {"release of Stoker": "0.2.0", "version of Stoker's bytes": "3", "all transforms of stream train": "a2"}
    assert told(**other) == [
        "version of Stoker's bytes (2 on the coordinator's machine, 3 on the worker's)", release
    ]  # fmt: skip
    other = {"release of Stoker": "0.2.0", "version of Stoker's plans": "3", OWN[1][0]: "p2"}
    assert told(**other) == ["version of Stoker's plans (2 on the coordinator's machine, 3 on the worker's)", release]


def test_of_all_else_the_name_is_told_and_never_a_digest():
    changed = {name: "other" for name, _ in OWN[:4]}
    assert differing_parts(OWN, [*changed.items(), *OWN[4:]]) == [OWN[0][0], OWN[2][0]], "these explain the other two"
    assert differing_parts(OWN, [(OWN[1][0], "other"), OWN[0], *OWN[2:]]) == [OWN[1][0]]
    assert differing_parts(OWN, [*OWN[:3], (OWN[3][0], "other"), *OWN[4:]]) == [OWN[3][0]]


def test_parts_are_cut_to_what_a_message_carries():
    stream = SimpleNamespace(builder_parts=lambda: {f"package {n} {'x' * 300}": "1" * 300 for n in range(300)})
    parts = builder_parts({"train": stream}, {"sent": "tf 2"})
    assert parts[0] == ("streams of the job", "sent, train")
    assert len(parts) == 128
    assert max(len(text) for part in parts for text in part) == 200
