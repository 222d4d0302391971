"""The file that says where a coordinator is: half of it, none of it, somebody else's, and another address later."""

from __future__ import annotations

import os

import pytest

from shared.errors import SettingsError
from shared.system.endpoint_file import FollowedEndpoint, write_endpoint


@pytest.fixture
def file(tmp_path):
    tmp_path.chmod(0o755)
    return tmp_path / "endpoint"


def follow(file, *, encrypted=False):
    return FollowedEndpoint(f"file://{file}", encrypted=encrypted)


def test_an_address_is_itself():
    followed = FollowedEndpoint("tcp://loader-1:7400", encrypted=False)
    assert followed.address == followed.given == "tcp://loader-1:7400"
    assert not followed.has_moved("tcp://elsewhere:1", 100.0, 100.0)


def test_what_was_written_is_read_and_nothing_else_is_left(file):
    write_endpoint(file, "tcp://10.0.0.7:7400")
    assert [path.name for path in file.parent.iterdir()] == ["endpoint"]
    assert file.stat().st_mode & 0o777 == 0o644
    assert follow(file).address == "tcp://10.0.0.7:7400"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file or directory"),
        ("", "the file says '', which is no address"),
        ("tcp://10.0.0.7:74", "the file says 'tcp://10.0.0.7:74', which is no address"),
        ("tcp://0.0.0.0:7400\n", r"the file says 'tcp://0.0.0.0:7400\n', which is no address"),
        ("tcp://10.0.0.7:x\n", r"the file says 'tcp://10.0.0.7:x\n', which is no address"),
    ],
)
def test_a_file_that_says_nothing_yet_is_waited_for(file, text, problem):
    if text is not None:
        file.write_text(text)
    followed = follow(file)
    assert (followed.address, followed.problem) == ("", problem)
    assert not followed.has_moved("", 5.0, 100.0)
    write_endpoint(file, "tcp://10.0.0.7:7400")
    assert followed.has_moved("", 5.0, 101.0)
    assert (followed.address, followed.problem) == ("tcp://10.0.0.7:7400", "")


@pytest.mark.parametrize("kind", ["folder", "pipe", "circle"])
def test_what_is_no_file_is_waited_for_as_well(file, kind):
    make = {"folder": file.mkdir, "pipe": lambda: os.mkfifo(file), "circle": lambda: file.symlink_to(file)}
    make[kind]()
    followed = follow(file)
    assert followed.address == ""
    assert followed.problem


def test_only_who_hears_nothing_looks_and_not_all_the_time(file):
    write_endpoint(file, "tcp://10.0.0.7:7400")
    followed = follow(file)
    here = followed.address
    write_endpoint(file, "tcp://10.0.0.8:7400")
    assert not followed.has_moved(here, 0.9, 100.0)
    assert followed.address == here
    assert followed.has_moved(here, 1.0, 100.0)
    write_endpoint(file, "tcp://10.0.0.9:7400")
    assert not followed.has_moved("tcp://10.0.0.8:7400", 1.0, 100.2)
    assert followed.has_moved("tcp://10.0.0.8:7400", 1.0, 100.3)


def _to_others(file):
    file.chmod(0o666)


def _to_the_group(file):
    file.chmod(0o664)


def _folder_to_others(file):
    file.parent.chmod(0o777)


def _of_somebody_else(file):
    os.chown(file, 12345, -1)


def _folder_of_somebody_else(file):
    os.chown(file.parent, 12345, -1)


@pytest.mark.parametrize("open_it", [_to_others, _to_the_group, _folder_to_others])
def test_a_file_that_others_may_write_needs_keys(file, open_it):
    write_endpoint(file, "tcp://10.0.0.7:7400")
    open_it(file)
    with pytest.raises(SettingsError) as caught:
        follow(file)
    assert str(caught.value).startswith(
        f"file://{file}: expected keys, or an endpoint file and its folder that only you or root may write, got {file}"
        if open_it is not _folder_to_others
        else f"file://{file}: expected keys, or an endpoint file and its folder that only you or root may write, got "
        f"{file.parent}, which others may write. Use keys (`loader-server keys`), or chmod go-w {file.parent}."
    )
    assert follow(file, encrypted=True).address == "tcp://10.0.0.7:7400"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("give", [_of_somebody_else, _folder_of_somebody_else])
def test_a_file_of_somebody_else_needs_keys(file, give):
    write_endpoint(file, "tcp://10.0.0.7:7400")
    give(file)
    with pytest.raises(SettingsError, match=r"which belongs to user 12345\. Use keys .*, or run as that user"):
        follow(file)
    assert follow(file, encrypted=True).address == "tcp://10.0.0.7:7400"


def test_a_file_in_a_folder_for_all_is_taken_if_only_its_owner_may_replace_it(file):
    file.parent.chmod(0o1777)
    write_endpoint(file, "tcp://10.0.0.7:7400")
    assert follow(file).address == "tcp://10.0.0.7:7400"


def test_a_file_that_becomes_unsafe_leaves_the_last_address(file):
    write_endpoint(file, "tcp://10.0.0.7:7400")
    followed = follow(file)
    write_endpoint(file, "tcp://10.0.0.8:7400")
    _to_others(file)
    followed.look()
    assert followed.address == "tcp://10.0.0.7:7400"
    assert followed.problem == f"{file}, which others may write"


@pytest.mark.parametrize("name", ["file://endpoint", "file://", "ipc:///endpoint"])
def test_what_names_no_coordinator_is_refused(name):
    with pytest.raises(SettingsError, match="coordinator: expected"):
        FollowedEndpoint(name, encrypted=True)
