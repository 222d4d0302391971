"""Keys: made once, readable by their owner alone, never shown; what is in `allowed` is what counts."""

from __future__ import annotations

import logging
import os
import shutil
import stat

import pytest
import zmq
import zmq.utils.monitor

from shared.errors import SettingsError
from shared.keys import AllowedKeys, ClientKeys, ServerKeys, make_keys
from shared.sockets import bind_router, connect_dealer
from shared.wire.message_parts import ROLES
from tests.support.another_user import as_another_user, folder_for_all

SECRETS = {f"{role}.key_secret" for role in ROLES}
PUBLIC = {f"{role}.key" for role in ROLES}

READERS = {
    "coordinator.key_secret": lambda folder: ServerKeys.read(folder, "coordinator"),
    "worker.key_secret": lambda folder: ServerKeys.read(folder, "worker"),
    "trainer.key_secret": lambda folder: ClientKeys.read(folder, "trainer", to="worker"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "keys"
    make_keys(folder)
    return folder


def public(folder, role):
    return (folder / f"{role}.key").read_text().split('public-key = "')[1].split('"')[0]


# --- making ---


def test_what_is_in_a_key_folder(folder):
    modes = {path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert {name for name in modes if name.endswith(".key_secret")} == SECRETS
    assert {modes[name] for name in SECRETS} == {0o600}
    assert set(modes) == SECRETS | PUBLIC | {
        "allowed",
        *(f"allowed/{role}" for role in ROLES),
        *(f"allowed/{role}/{role}.key" for role in ROLES),
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for role in ROLES:
        assert (folder / "allowed" / role / f"{role}.key").read_bytes() == (folder / f"{role}.key").read_bytes()
        assert "secret-key" not in (folder / f"{role}.key").read_text()
    assert len({public(folder, role) for role in ROLES}) == 3


def test_a_folder_that_others_may_read_never_shows_a_secret(tmp_path):
    """Secrets are moved in when they are closed already, not closed when they are in."""
    tmp_path.chmod(0o755)
    make_keys(tmp_path)
    assert stat.S_IMODE((tmp_path / "worker.key_secret").stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == SECRETS | PUBLIC | {"allowed"}


def test_keys_are_never_overwritten(folder, tmp_path):
    before = (folder / "worker.key").read_bytes()
    with pytest.raises(
        SettingsError, match=r"expected a folder without keys, got keys are there already\. Name another"
    ):
        make_keys(folder)
    assert (folder / "worker.key").read_bytes() == before
    (tmp_path / "trainer.key_secret").write_text("mine")
    with pytest.raises(SettingsError, match="keys are there already"):
        make_keys(tmp_path)
    assert (tmp_path / "trainer.key_secret").read_text() == "mine"


# --- reading ---


def test_no_key_in_a_repr(folder):
    for read in READERS.values():
        shown = repr(read(folder)) + str(read(folder))
        assert str(folder) in shown
        for line in "".join(path.read_text() for path in folder.glob("*.key*")).splitlines():
            if "-key = " in line:
                assert line.split('"')[1] not in shown


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"no key at all",
        b"\xff\xfe",
        b"public-key",
        b'curve\n    public-key = "x"\n',
        b'public-key = "%s"\n' % (b"x" * 40),
        b'public-key = "%s"\nsecret-key = "y"\n' % (b"x" * 40),
        b'public-key = "%s"\nsecret-key = "%s"\n' % (b"x" * 40, b"\xe4" * 40),
    ],
)
def test_a_folder_that_is_wrong(name, content, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        READERS[name](tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / name}: expected a CURVE key, got ")
    assert said.endswith("Make keys with `loader-server keys FOLDER` and copy what each machine needs.")


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("old", ["server", "client"])
def test_keys_of_an_earlier_release_are_named_as_that(name, old, tmp_path):
    (tmp_path / f"{old}.key_secret").write_text("whatever")
    with pytest.raises(SettingsError) as caught:
        READERS[name](tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: expected {name}, got keys without roles, which an earlier release made. "
        "Make keys with `loader-server keys FOLDER` and copy what each machine needs."
    )


@pytest.mark.parametrize("server", ["coordinator", "worker"])
def test_who_asks_needs_the_public_half_of_whom_it_asks(folder, tmp_path, server):
    (tmp_path / "trainer.key_secret").write_bytes((folder / "trainer.key_secret").read_bytes())
    with pytest.raises(SettingsError, match=rf"{server}\.key: expected a CURVE key"):
        ClientKeys.read(tmp_path, "trainer", to=server)


@pytest.mark.parametrize(
    ("there", "shown"), [(ROLES, "coordinator"), (("trainer", "worker"), "worker"), (("trainer",), "trainer")]
)
def test_a_person_asks_with_the_pair_that_the_machine_has(folder, tmp_path, there, shown):
    for name in ("coordinator.key", *(f"{role}.key_secret" for role in there)):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    keys = ClientKeys.read_any(tmp_path, to="coordinator")
    assert keys == ClientKeys.read(tmp_path, shown, to="coordinator")


@pytest.mark.parametrize(
    "read",
    [
        lambda folder: ClientKeys.read(folder, "trainer", to="coordinator"),
        lambda folder: ClientKeys.read_any(folder, to="coordinator"),
        lambda folder: ServerKeys.read(folder, "worker"),
    ],
)
def test_keys_of_another_user_are_refused_by_a_sentence(folder, read):
    folder.chmod(0o700)
    with as_another_user(), pytest.raises(SettingsError, match=r"key that this user may read, got permission denied"):
        read(folder)


@pytest.mark.fault(66)
@pytest.mark.parametrize("closed", ["allowed", "allowed/worker"])
def test_a_server_that_may_not_see_whom_to_let_in_is_refused(closed):
    with folder_for_all() as keys:
        make_keys(keys)
        (keys / "worker.key_secret").chmod(0o644)
        (keys / closed).chmod(0o700)
        ServerKeys.read(keys, "worker")
        refusal = (
            rf"{closed}: expected a folder of allowed keys that user \d+ may look into, got Permission denied\. Let "
        )
        with as_another_user(), pytest.raises(SettingsError, match=refusal):
            ServerKeys.read(keys, "worker")


def test_a_person_at_a_machine_without_keys_is_told_so(tmp_path):
    with pytest.raises(SettingsError, match=r"trainer\.key_secret: expected a CURVE key"):
        ClientKeys.read_any(tmp_path, to="coordinator")


# --- allowed ---


@pytest.fixture
def allowed(folder, tmp_path):
    for role in ROLES:
        (tmp_path / "allowed" / role).mkdir(parents=True)
        put(folder, tmp_path / "allowed" / role / f"{role}.key", role)
    return AllowedKeys(tmp_path / "allowed")


def put(folder, path, role):
    path.write_bytes((folder / f"{role}.key").read_bytes())


def test_a_key_has_the_role_of_its_folder(allowed, folder):
    assert [allowed.roles(public(folder, role)) for role in ROLES] == [{role} for role in ROLES]
    assert allowed.roles("x" * 40) == set()


@pytest.mark.fault(26)
def test_a_key_that_is_taken_out_has_no_role_any_more(allowed, folder, tmp_path):
    assert not allowed.follow()
    (tmp_path / "allowed/trainer/trainer.key").unlink()
    assert allowed.follow()
    assert allowed.roles(public(folder, "trainer")) == set()
    assert allowed.roles(public(folder, "worker")) == {"worker"}
    assert not allowed.follow()


def test_a_key_that_is_put_in_counts_under_any_name(allowed, folder, tmp_path):
    put(folder, tmp_path / "allowed/worker/of another machine.key", "trainer")
    assert allowed.follow()
    assert allowed.roles(public(folder, "trainer")) == {"trainer", "worker"}


def test_a_key_that_is_replaced_in_place_is_noticed(allowed, folder, tmp_path):
    put(folder, tmp_path / "allowed/trainer/trainer.key", "worker")
    assert allowed.follow()
    assert allowed.roles(public(folder, "trainer")) == set()
    assert allowed.roles(public(folder, "worker")) == {"trainer", "worker"}


@pytest.mark.parametrize("gone", ["allowed", "allowed/trainer"])
def test_a_folder_that_is_gone_lets_nobody_in(allowed, folder, tmp_path, gone):
    (tmp_path / gone).rename(tmp_path / "elsewhere")
    assert allowed.follow()
    assert allowed.roles(public(folder, "trainer")) == set()


def test_a_folder_that_cannot_be_read_changes_nothing(allowed, folder, tmp_path, caplog):
    """A file system that is away for a moment must not end every feed."""
    (tmp_path / "allowed").rename(tmp_path / "elsewhere")
    (tmp_path / "allowed").write_text("no folder")
    with caplog.at_level(logging.WARNING, "stoker"):
        assert not allowed.follow()
        assert not allowed.follow()
    assert caplog.text.count("allowed keys cannot be read again") == 1
    assert allowed.roles(public(folder, "trainer")) == {"trainer"}


def test_what_is_no_key_or_has_no_role_is_left_out_and_named(allowed, folder, tmp_path, caplog):
    put(folder, tmp_path / "allowed/astray.key", "trainer")
    (tmp_path / "allowed/trainers").mkdir()
    put(folder, tmp_path / "allowed/trainers/typo.key", "trainer")
    (tmp_path / "allowed/trainer/torn.key").write_text("public-")
    (tmp_path / "allowed/trainer/trainer.key").rename(tmp_path / "allowed/trainer/trainer.key.off")
    (tmp_path / "allowed/worker/nowhere.key").symlink_to("gone")
    with caplog.at_level(logging.INFO, "stoker"):
        assert allowed.follow()
    assert allowed.roles(public(folder, "trainer")) == set()
    for name in ("astray.key", "typo.key", "torn.key"):
        assert name in caplog.text
    assert "trainer=0" in caplog.text
    assert "worker=1" in caplog.text
    assert not any(public(folder, role) in caplog.text for role in ROLES)


# --- on sockets ---


def test_both_sides_talk_under_curve(folder, context):
    router = bind_router(context, "tcp://127.0.0.1:*", ServerKeys.read(folder, "worker"))
    keys = ClientKeys.read(folder, "trainer", to="worker")
    dealer = connect_dealer(context, router.getsockopt_string(zmq.LAST_ENDPOINT), keys, b"me")
    dealer.setsockopt(zmq.SNDTIMEO, 60_000)
    dealer.send(b"hello")
    assert router.poll(60_000)
    assert router.recv_multipart() == [b"me", b"hello"]


@pytest.mark.fault(26)
def test_another_servers_key_does_not_open_the_door(folder, context):
    """Nor do a worker's keys make a coordinator."""
    router = bind_router(context, "tcp://127.0.0.1:*", ServerKeys.read(folder, "worker"))
    monitor = router.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    keys = ClientKeys.read(folder, "trainer", to="coordinator")
    connect_dealer(context, router.getsockopt_string(zmq.LAST_ENDPOINT), keys, b"stranger")
    assert monitor.poll(60_000)
    assert zmq.utils.monitor.recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED


# --- who else may read or write ---


@pytest.fixture
def copied(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "keys")
    return tmp_path / "keys"


@pytest.mark.parametrize("name", READERS)
def test_a_secret_that_everybody_may_read_is_warned_about_by_its_file(name, copied, caplog):
    READERS[name](copied)
    assert not caplog.records
    (copied / name).chmod(0o644)
    READERS[name](copied)
    assert not caplog.records, "nobody else can reach it in its folder"
    copied.chmod(0o711)
    READERS[name](copied)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "everybody on this machine may read a secret key: chmod 600" in warning.getMessage()
    assert str(copied / name) in warning.getMessage()
    (copied / name).chmod(0o640)
    caplog.clear()
    READERS[name](copied)
    assert not caplog.records


@pytest.mark.parametrize("place", [".", "worker"])
def test_a_folder_that_everybody_may_let_keys_in_by_is_warned_about(place, copied, caplog):
    copied.chmod(0o755)
    AllowedKeys(copied / "allowed")
    assert "everybody" not in caplog.text
    (copied / "allowed" / place).chmod(0o777)
    AllowedKeys(copied / "allowed")
    assert caplog.text.count("everybody on this machine may let keys in: chmod o-w") == 1


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.mkdir(), lambda path: path.symlink_to("/dev/zero")])
def test_a_pipe_in_the_place_of_a_key_is_not_waited_for(make, copied):
    (copied / "worker.key_secret").unlink()
    make(copied / "worker.key_secret")
    with pytest.raises(SettingsError, match="expected a CURVE key, got a folder, pipe or device"):
        ServerKeys.read(copied, "worker")
