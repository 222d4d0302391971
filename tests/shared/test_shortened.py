"""Text that is cut in the middle."""

from __future__ import annotations

import pytest

from shared.shortened import shortened


@pytest.mark.parametrize(
    ("text", "cut"), [("", ""), ("abcdefgh", "abcdefgh"), ("abcdefghi", "abcd … i"), ("a" * 99 + "z", "aaaa … z")]
)
def test_both_ends_stay(text: str, cut: str) -> None:
    assert shortened(text, 8) == cut


def test_it_is_never_longer() -> None:
    assert all(len(shortened("x" * length, most)) == min(length, most) for length in range(60) for most in range(8, 50))
