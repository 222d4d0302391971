"""URLs: which they are, and that none holds a credential."""

from __future__ import annotations

import posixpath

import pytest

from loader_server.sources.remote.urls import is_url, joined, refuse_unusable, without_credentials
from shared.errors import DataError


def test_what_is_a_url() -> None:
    assert all(map(is_url, ("s3://b/k", "https://h/p", "gs://b/k", "HTTP://h/p")))
    assert not any(map(is_url, ("a.txt", "/a/b", "C:/a", "a/b://c", "://x")))


@pytest.mark.parametrize(
    "url",
    [
        "https://me:secret@host/a.tar",
        "https://host/a.tar?X-Amz-Signature=secret&X-Amz-Credential=AKIASECRETSECRETSECR",
        "https://host/a.tar?sig=secret",
        "https://host/a.tar?version=2&token=secret",
    ],
)
def test_a_url_with_credentials_is_refused_without_saying_them(url: str) -> None:
    with pytest.raises(DataError, match="expected a URL without credentials, got one with ") as caught:
        refuse_unusable(url)
    assert "secret" not in str(caught.value).lower()
    assert "host/a.tar" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///a.wav", r"expected a path, or the URL of a store, got file://\. Write the path alone"),
        ("FILE://host/a.wav", "got file://"),
        ("data://x,y", "got data://"),
        ("http://", "expected a host after http://, got none"),
        ("https:///a.wav", "expected a host after https://, got none"),
        ("http://h:99999/a", "expected a URL, got Port out of range"),
        ("http://[/a.wav", "expected a URL, got Invalid IPv6 URL"),
    ],
)
def test_what_no_store_can_have_is_refused(url: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        refuse_unusable(url)


def test_other_urls_pass() -> None:
    for url in ("https://host/a.tar?version=2", "s3://bucket/a@b.tar", "https://host/a.tar"):
        refuse_unusable(url)


def test_what_stores_repeat_is_left_out() -> None:
    said = "no AKIAABCDEFGHIJKLMNOP for http://me:pw@h/p?sig=abc&x=1 here"
    assert without_credentials(said) == "no … for http://…@h/p?… here"


def test_names_are_relative_to_folders_near_and_far() -> None:
    assert joined("/data", "a.wav") == "/data/a.wav"
    assert joined("/data", "/b/a.wav") == "/b/a.wav"
    assert joined("s3://b/k", "c/a.wav") == "s3://b/k/c/a.wav"
    assert joined("s3://b/k", "https://h/a.wav") == "https://h/a.wav"


@pytest.mark.parametrize("folder", ["", "/", "/data", "/data/", "data"])
@pytest.mark.parametrize("name", ["", "a.wav", "b/a.wav", "/b/a.wav", "./a.wav", "../a.wav"])
def test_local_paths_are_joined_as_the_library_does(folder, name):
    assert joined(folder, name) == posixpath.join(folder, name)
