"""Which samples are masked unread: those that the coordinator names, and those that were found here."""

from __future__ import annotations

from loader_server.building.culprits import KnownCulprits, culprit_key
from shared.hashing import digest64


def test_the_coordinators_list_replaces_its_last_one() -> None:
    culprits = KnownCulprits("train")
    culprits.hear((1, 2))
    culprits.hear((2, 3))
    assert culprits.keys == {2, 3}
    culprits.hear(())
    assert culprits.keys == frozenset()


def test_what_was_found_here_stays_until_the_coordinator_names_it_and_goes_when_it_is_forgiven() -> None:
    culprits = KnownCulprits("train")
    culprits.hear((1,))
    culprits.find("a.wav")
    assert culprits.keys == {1, culprit_key("train", "a.wav")}
    culprits.hear((1, 2))  # sent before it heard of ours
    assert culprits.keys == {1, 2, culprit_key("train", "a.wav")}
    culprits.hear((1, culprit_key("train", "a.wav")))
    culprits.find("b.wav")
    culprits.hear((1,))
    assert culprits.keys == {1, culprit_key("train", "b.wav")}


def test_the_key_is_the_digest_of_the_text_as_it_crosses() -> None:
    assert culprit_key("train", "clips/é.wav") == digest64("train\0clips/é.wav".encode())
    assert culprit_key("train", "\udce9.wav") == digest64(b"train\0\\udce9.wav")


def test_what_is_a_culprit_in_one_stream_is_none_in_another() -> None:
    train, dev = KnownCulprits("train"), KnownCulprits("dev")
    train.find("a.wav")
    dev.hear(train.keys)
    assert "a.wav" in train
    assert "b.wav" not in train
    assert "a.wav" not in dev
