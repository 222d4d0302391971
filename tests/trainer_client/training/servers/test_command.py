"""What the command says where it cannot train with parameter servers."""

from __future__ import annotations

import json

import pytest

from shared.cluster_role import Role
from shared.errors import SettingsError
from tests.support.fake_feed import FakeFeed, LeasedCursor
from trainer_client import Until
from trainer_client.training.servers.command import epochs_of, role_with_servers, serve_share, steps_of
from trainer_client.training.servers.served_model import refuse_lockstep


def test_targets_are_the_same_for_all_workers():
    assert (epochs_of(Until(epochs="4")), steps_of(Until(steps=20))) == (4, 20)
    assert (epochs_of(Until(steps=20)), steps_of(Until(epochs=4))) == (None, 0)
    with pytest.raises(SettingsError, match="--epochs: expected a number that is the same for all workers, got "):
        epochs_of(Until(epochs="+4"))


@pytest.mark.parametrize(
    ("cluster", "kind"), [({"worker": ["10.0.0.1:1"]}, "worker"), ({"worker": ["a:1"], "ps": ["b:1"]}, "evaluator")]
)
def test_a_cluster_has_servers_and_workers(monkeypatch, cluster, kind):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}}))
    with pytest.raises(SettingsError, match="expected a worker or a parameter server of a cluster with both"):
        role_with_servers()


def test_a_server_beyond_loopback_needs_keys():
    place = Role(kind="ps", ps_hosts=("10.0.0.9:2222",), worker_hosts=("10.0.0.1:2222",))
    with pytest.raises(SettingsError, match="expected keys, or loopback addresses"):
        serve_share(place, "", lambda: None)


def test_a_stream_in_lockstep_is_refused():
    with pytest.raises(SettingsError, match='expected mode = "queue"'):
        refuse_lockstep(FakeFeed(epochs=(1,))._session)
    feed = FakeFeed(epochs=(1,))
    feed.session.cursor = LeasedCursor(feed.session)
    refuse_lockstep(feed._session)
