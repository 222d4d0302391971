"""Text for people, shortened to what they read. Pure."""

from __future__ import annotations

__all__ = ["shortened"]


def shortened(text: str, most: int) -> str:
    """Return at most `most` characters of a text; a longer text loses its middle, because both ends are informative."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[3 - (most - most // 2) :]}"
