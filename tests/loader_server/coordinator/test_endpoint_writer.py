"""The endpoint file of a coordinator says where others reach it, whatever happens to its address, and to the file."""

from __future__ import annotations

import pytest

from loader_server.coordinator.endpoint_writer import EndpointWriter
from loader_server.machine import reachable
from shared.logs import Log
from tests.support.disk import no_file_larger_than
from tests.support.exhaustion import no_descriptor_left


@pytest.fixture
def file(tmp_path):
    return tmp_path / "endpoint"


def writer_of(file, bound="tcp://0.0.0.0:7400", advertise=""):
    return EndpointWriter(file, bound, advertise, Log("coordinator"))


def test_it_follows_the_machine_s_address(file, monkeypatch):
    addresses = iter(["10.0.0.7", "10.0.0.7", "10.0.0.8"])
    monkeypatch.setattr(reachable, "_find_address_towards", lambda _host: next(addresses))
    writer = writer_of(file)
    writer.write()
    first = file.stat()
    assert file.read_text() == "tcp://10.0.0.7:7400\n"
    writer.write()
    assert file.stat().st_ino == first.st_ino, "nothing to say anew"
    writer.write()
    assert file.read_text() == "tcp://10.0.0.8:7400\n"
    writer.close()
    assert not file.exists()


@pytest.mark.parametrize(
    ("bound", "advertise", "told"),
    [
        ("tcp://127.0.0.1:7400", "", "tcp://127.0.0.1:7400"),
        ("tcp://0.0.0.0:7400", "loader-1", "tcp://loader-1:7400"),
    ],
)
def test_it_says_what_was_bound_or_advertised(file, bound, advertise, told):
    writer_of(file, bound, advertise).write()
    assert file.read_text() == f"{told}\n"


def test_a_file_that_was_removed_is_written_again(file):
    writer = writer_of(file, "tcp://127.0.0.1:7400")
    writer.write()
    file.unlink()
    writer.write()
    assert file.read_text() == "tcp://127.0.0.1:7400\n"


def test_a_full_disk_is_said_once_and_tried_again(file, caplog):
    writer = writer_of(file, "tcp://127.0.0.1:7400")
    with no_file_larger_than(0), caplog.at_level("WARNING"):
        writer.write()
        writer.write()
    assert not file.exists()
    assert list(file.parent.iterdir()) == [], "no draft is left"
    assert caplog.text.count("endpoint file cannot be written yet") == 1
    writer.write()
    assert file.read_text() == "tcp://127.0.0.1:7400\n"


def test_a_lack_of_descriptors_is_logged_once_and_tried_again(file, caplog):
    writer = writer_of(file)
    with no_descriptor_left(), caplog.at_level("WARNING"):
        writer.write()
        writer.write()
    assert not file.exists()
    assert caplog.text.count("endpoint file cannot be written yet") == 1
    assert "Too many open files" in caplog.text
    writer.write()
    assert file.read_text().endswith(":7400\n")
