"""Keys: made once, readable by their owner alone, never shown."""

from __future__ import annotations

import stat

import pytest
import zmq
import zmq.utils.monitor

from shared.errors import SettingsError
from shared.keys import ClientKeys, ServerKeys, make_keys
from shared.sockets import bind_router, connect_dealer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "keys"
    make_keys(folder)
    return folder


def test_what_is_in_a_key_folder(folder):
    modes = {path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert {name for name in modes if name.endswith(".key_secret")} == {"server.key_secret", "client.key_secret"}
    assert modes["server.key_secret"] == modes["client.key_secret"] == 0o600
    assert set(modes) == {
        "server.key",
        "server.key_secret",
        "client.key",
        "client.key_secret",
        "allowed",
        "allowed/client.key",
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "allowed" / "client.key").read_bytes() == (folder / "client.key").read_bytes()
    assert "secret-key" not in (folder / "client.key").read_text()


def test_a_folder_that_others_may_read_never_shows_a_secret(tmp_path):
    """Secrets are moved in when they are closed already, not closed when they are in."""
    tmp_path.chmod(0o755)
    make_keys(tmp_path)
    assert stat.S_IMODE((tmp_path / "server.key_secret").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "allowed",
        "client.key",
        "client.key_secret",
        "server.key",
        "server.key_secret",
    ]


def test_keys_are_never_overwritten(folder, tmp_path):
    before = (folder / "server.key").read_bytes()
    with pytest.raises(
        SettingsError, match=r"expected a folder without keys, got keys are there already\. Name another"
    ):
        make_keys(folder)
    assert (folder / "server.key").read_bytes() == before
    (tmp_path / "client.key_secret").write_text("mine")
    with pytest.raises(SettingsError, match="keys are there already"):
        make_keys(tmp_path)
    assert (tmp_path / "client.key_secret").read_text() == "mine"


def test_no_key_in_a_repr(folder):
    for keys in (ServerKeys.read(folder), ClientKeys.read(folder)):
        shown = repr(keys) + str(keys)
        assert str(folder) in shown
        for line in "".join(path.read_text() for path in folder.glob("*.key*")).splitlines():
            if "-key = " in line:
                assert line.split('"')[1] not in shown


@pytest.mark.parametrize("read", [ServerKeys.read, ClientKeys.read])
@pytest.mark.parametrize("content", [None, "", "no key at all", b"\xff\xfe", 'curve\n    public-key = "x"\n'])
def test_a_folder_that_is_wrong(read, content, tmp_path):
    if content is not None:
        for name in ("server.key_secret", "client.key_secret"):
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SettingsError) as caught:
        read(tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/")
    assert "expected a CURVE key, got " in said
    assert said.endswith("Make keys with `loader-server keys FOLDER` and copy what each machine needs.")


def test_a_client_needs_the_servers_public_half(folder, tmp_path):
    (tmp_path / "client.key_secret").write_bytes((folder / "client.key_secret").read_bytes())
    with pytest.raises(SettingsError, match=r"server\.key: expected a CURVE key"):
        ClientKeys.read(tmp_path)


def test_both_sides_talk_under_curve(folder, context):
    router = bind_router(context, "tcp://127.0.0.1:*", ServerKeys.read(folder))
    dealer = connect_dealer(context, router.getsockopt_string(zmq.LAST_ENDPOINT), ClientKeys.read(folder), b"me")
    dealer.setsockopt(zmq.SNDTIMEO, 20_000)
    dealer.send(b"hello")
    assert router.poll(20_000)
    assert router.recv_multipart() == [b"me", b"hello"]


@pytest.mark.fault(26)
def test_another_servers_key_does_not_open_the_door(folder, context, tmp_path):
    make_keys(tmp_path / "other")
    router = bind_router(context, "tcp://127.0.0.1:*", ServerKeys.read(folder))
    monitor = router.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    connect_dealer(
        context, router.getsockopt_string(zmq.LAST_ENDPOINT), ClientKeys.read(tmp_path / "other"), b"stranger"
    )
    assert monitor.poll(20_000)
    assert zmq.utils.monitor.recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED


@pytest.mark.fault(26)
def test_only_clients_that_are_allowed_come_in(folder, context, tmp_path):
    """A stranger that knows the server's public key, which is no secret, stays outside."""
    make_keys(tmp_path / "stranger")
    (tmp_path / "stranger" / "server.key").write_bytes((folder / "server.key").read_bytes())
    keys = ServerKeys.read(folder)
    with keys.guarding(context):
        router = bind_router(context, "tcp://127.0.0.1:*", keys)
        endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT)
        monitor = router.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        connect_dealer(context, endpoint, ClientKeys.read(tmp_path / "stranger"), b"stranger")
        assert monitor.poll(20_000)
        assert zmq.utils.monitor.recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        friend = connect_dealer(context, endpoint, ClientKeys.read(folder), b"friend")
        friend.setsockopt(zmq.SNDTIMEO, 20_000)
        friend.send(b"hello")
        assert router.poll(20_000)
        assert router.recv_multipart() == [b"friend", b"hello"]
