"""Text for people that is no longer than they read. Pure."""

from __future__ import annotations

__all__ = ["shortened"]


def shortened(text: str, most: int) -> str:
    """Return at most so many characters of a text, without its middle if need be: both of its ends tell something."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[3 - (most - most // 2) :]}"
