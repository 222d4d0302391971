"""What may be served, and what somebody else can connect to."""

from __future__ import annotations

import pytest

from shared.endpoints import (
    advertised,
    at_any_port,
    at_port,
    check_endpoint,
    is_connectable,
    leads_elsewhere,
    port_beside,
    port_of,
)
from shared.errors import SettingsError

# --- what may be served ---


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:7400", "tcp://localhost:*", "tcp://[::1]:0", "tcp://127.8.0.1:65535"]
)
def test_loopback_needs_no_keys(endpoint):
    check_endpoint(endpoint, where="listen", encrypted=False, insecure=False)


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:7400", "tcp://*:7400", "tcp://loader-1:7400", "tcp://[::]:7400"])
def test_beyond_loopback_needs_keys_or_insecure(endpoint):
    with pytest.raises(SettingsError) as caught:
        check_endpoint(endpoint, where="job.toml, listen", encrypted=False, insecure=False)
    assert str(caught.value) == (
        "job.toml, listen: expected keys, or a loopback address such as tcp://127.0.0.1:7400, "
        f"got {endpoint} without keys: anyone who reaches it could feed on it. Name a key directory "
        "(keys = …, made with `loader-server keys`), or write --insecure to serve port 7400 openly."
    )
    check_endpoint(endpoint, where="x", encrypted=True, insecure=False)
    check_endpoint(endpoint, where="x", encrypted=False, insecure=True)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "127.0.0.1:7400",
        "tcp://127.0.0.1",
        "tcp://:7400",
        "tcp://h:65536",
        "tcp://h:-1",
        "tcp://h:x",
        "tcp://h:1²",
        "ipc:///tmp/x",
    ],
)
def test_what_is_no_endpoint(endpoint):
    with pytest.raises(SettingsError) as caught:
        check_endpoint(endpoint, where="connect", encrypted=True, insecure=True)
    assert str(caught.value) == (
        f"connect: expected an endpoint like tcp://127.0.0.1:7400, got {endpoint!r}. Write scheme, host and port."
    )


# --- what others can connect to ---


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://10.0.0.7:40123",
        "tcp://loader-1:1",
        "tcp://[fe80::1]:65535",
        "tcp://[::1]:1",
        "tcp://loader_1.cluster.local:7400",
    ],
)
def test_what_others_can_connect_to(endpoint):
    assert is_connectable(endpoint)


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    "endpoint",
    [
        "bogus",
        "",
        "tcp://",
        "tcp://h",
        "tcp://:1",
        "tcp://h:*",
        "tcp://h:0",
        "tcp://h:65536",
        "tcp://h:-1",
        "tcp://h:1²",
        "tcp://h:" + "9" * 100,
        "tcp://*:7400",
        "tcp://0.0.0.0:7400",
        "tcp://[::]:7400",
        "tcp://::1:7400",
        "tcp://[::1:7400",
        "tcp://::1]:7400",
        "tcp://[10.0.0.7]:7400",
        "tcp://999.0.0.1:7400",
        "tcp://224.0.0.1:7400",
        "tcp://eth0:0;10.0.0.7:7400",
        "tcp://a host:7400",
        "tcp://-h:7400",
        "tcp://h..i:7400",
        "tcp://h\0:7400",
        "ipc:///tmp/x",
        "inproc://x",
        "udp://h:7400",
        "pgm://h:7400",
    ],
)
def test_what_nobody_can_connect_to(endpoint):
    assert not is_connectable(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "beside"),
    [
        ("tcp://0.0.0.0:7410", 7411),
        ("tcp://[::1]:65534", 65535),
        ("tcp://[::1]:65535", None),
        ("tcp://0.0.0.0:*", None),
        ("tcp://0.0.0.0:0", None),
    ],
)
def test_the_port_beside_a_given_one(endpoint, beside):
    assert port_beside(endpoint) == beside


def test_the_port_of_an_endpoint_and_another_one():
    assert port_of("tcp://[::1]:7400") == 7400
    assert at_port("tcp://[::1]:7400", 7401) == "tcp://[::1]:7401"
    assert at_any_port("tcp://[::1]:7400") == "tcp://[::1]:*"


@pytest.mark.parametrize(
    ("endpoint", "peer_host", "elsewhere"),
    [
        ("tcp://127.0.0.1:7411", "10.0.0.7", True),
        ("tcp://localhost:7411", "10.0.0.7", True),
        ("tcp://[::1]:7411", "fd00::7", True),
        ("tcp://127.0.0.1:7411", "::ffff:10.0.0.7", True),
        ("tcp://127.0.0.1:7411", "127.0.0.1", False),
        ("tcp://127.0.0.1:7411", "::ffff:127.0.0.1", False),
        ("tcp://127.0.0.1:7411", "::1", False),
        ("tcp://127.0.0.1:7411", "", False),
        ("tcp://10.0.0.7:7411", "10.0.0.8", False),
        ("tcp://loader-b:7411", "10.0.0.8", False),
    ],
)
def test_a_loopback_endpoint_of_another_host_leads_elsewhere(endpoint, peer_host, elsewhere):
    assert leads_elsewhere(endpoint, peer_host) is elsewhere


# --- what others are told ---


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("", "tcp://0.0.0.0:7410"),
        ("loader-1", "tcp://loader-1:7410"),
        ("203.0.113.7:17410", "tcp://203.0.113.7:17410"),
        ("[2001:db8::7]", "tcp://[2001:db8::7]:7410"),
        ("[2001:db8::7]:17410", "tcp://[2001:db8::7]:17410"),
    ],
)
def test_what_is_advertised_takes_the_place_of_the_bound_host(host, told):
    assert advertised("tcp://0.0.0.0:7410", host) == told


@pytest.mark.parametrize("host", ["0.0.0.0", "tcp://loader-1", "loader-1:", "loader-1:0", "*", "2001:db8::7"])
def test_what_nobody_reaches_is_not_advertised(host):
    with pytest.raises(SettingsError, match="--advertise: expected a host that others reach"):
        advertised("tcp://0.0.0.0:7410", host)
