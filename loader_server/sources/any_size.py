"""The setting `any_size`: which values of a source may differ along their first two axes, rows and columns.

Rules: pure. All other values differ along their first axis alone, so that a value of another shape by mistake is found.
`True` stands for all images, names for these keys, whatever they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from shared.errors import SettingsError
from shared.settings.parsers import BadValue, setting, texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["AnySize", "any_size_keys", "any_size_setting", "has_any_size", "refuse_resized", "refuse_unknown_keys"]

#: What the setting holds once it is read.
AnySize: TypeAlias = "bool | tuple[str, ...]"


def any_size_setting() -> Any:
    """Return the setting `any_size` of a source that may have images."""
    text = (
        'keys whose values may differ in rows and columns, which are both padded then, such as ["image"]; '
        "true: all images"
    )
    return setting(_flag_or_keys, text, default=False, later=True)


def any_size_keys() -> Any:
    """Return the setting `any_size` of a source that does not know which of its values are images."""
    text = 'keys whose values may differ along their first two axes, which are both padded then, such as ["image"]'
    return setting(texts, text, default=(), later=True)


def _flag_or_keys(value: object) -> AnySize:
    """Return true or false, or a list of keys as a tuple; raise BadValue otherwise."""
    if isinstance(value, bool):
        return value
    try:
        return texts(value)
    except BadValue:
        raise BadValue("true, false, or a list of keys") from None


def has_any_size(any_size: AnySize, key: str, *, image: bool = False) -> bool:
    """Return whether values under this key, maybe images, may differ along their first two axes."""
    return key in any_size if isinstance(any_size, tuple) else any_size and image


def refuse_unknown_keys(any_size: AnySize, known: Iterable[str], where: str, remedy: str = "") -> None:
    """Raise a SettingsError if a key of the setting is none of the keys of arrays and images that there are.

    `remedy` replaces the advice to mend the setting.
    """
    keys = list(known)
    for key in any_size if isinstance(any_size, tuple) else ():
        if key not in keys:
            raise SettingsError(
                expected="keys of arrays or images: " + (", ".join(f'"{name}"' for name in keys) or "there are none"),
                got=f'"{key}"',
                where=f"{where}, any_size",
                remedy=remedy or "Mend any_size, or name the key of a value with two axes or more.",
            )


def refuse_resized(any_size: AnySize, resize: Sequence[int], images: Iterable[str], where: str) -> None:
    """Raise a SettingsError if images are both resized to one size and of any; `images` are the keys of images."""
    if resize and (any_size is True or any(has_any_size(any_size, key) for key in images)):
        raise SettingsError(
            expected="either resize or any_size = true",
            got="both",
            where=where,
            remedy="Images that are resized have one size: leave one of them out.",
        )
