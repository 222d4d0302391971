"""Where metrics may be served, and who may read them."""

from __future__ import annotations

import pytest

from shared.errors import SettingsError
from shared.metrics.listening import Listening, listening_of

TOKEN = "0123456789abcdef"


@pytest.fixture
def token(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return file


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("", "127.0.0.1", 9),
        ("127.0.0.1", "127.0.0.1", 9),
        ("localhost:0", "localhost", 0),
        ("127.0.0.1:9100", "127.0.0.1", 9100),
        ("[::1]:9100", "::1", 9100),
        ("[::1]", "::1", 9),
    ],
)
def test_loopback_needs_no_token(listen, host, port):
    assert listening_of(listen, 9, None, insecure=False) == Listening(host=host, port=port)


@pytest.mark.parametrize("listen", ["0.0.0.0:9100", "10.0.0.7", "loader-1:9100", "[::]:9100"])
def test_beyond_loopback_a_token_or_insecure_is_needed(listen, token):
    with pytest.raises(SettingsError) as caught:
        listening_of(listen, 0, None, insecure=False)
    assert str(caught.value) == (
        f"--metrics-listen: expected a token, or a loopback address such as 127.0.0.1:9100, got {listen} without one: "
        "anyone who reaches it could read the metrics. Write a secret into a file and name it with "
        "--metrics-token FILE, or write --insecure."
    )
    assert listening_of(listen, 0, token, insecure=False).token == TOKEN
    assert listening_of(listen, 0, None, insecure=True).token == ""


@pytest.mark.parametrize("listen", [":9100", "0.0.0.0:", "0.0.0.0:x", "h:65536", "h:1²", "http://h:1", "a b:1", "[::1"])
def test_what_is_no_address_is_refused(listen):
    with pytest.raises(SettingsError, match="--metrics-listen: expected a host, or a host and a port"):
        listening_of(listen, 0, None, insecure=True)


def test_only_the_token_admits():
    guarded = Listening(token=TOKEN)
    assert guarded.admits(f"Bearer {TOKEN}")
    for wrong in ("", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer é"):
        assert not guarded.admits(wrong), wrong
    assert Listening().admits("")
    assert TOKEN not in repr(guarded)


@pytest.mark.parametrize("text", ["", "short", "0123456789abcdef two", "0123456789abcdef\nanother", "0123456789abcdeé"])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(tmp_path, text):
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(SettingsError, match=r"expected a token: a line of 16 or more letters.*`openssl rand"):
        listening_of("0.0.0.0", 0, file, insecure=False)


def test_a_token_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"--metrics-token .*/none: expected a token.*got No such file"):
        listening_of("", 0, tmp_path / "none", insecure=False)
