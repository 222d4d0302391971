"""pyarrow, or the error that says how to get it: nobody else here imports it."""

from __future__ import annotations

from shared.errors import SettingsError

try:
    import pyarrow  # noqa: ICN001 - so that `pa` is a name of this module
    from pyarrow import compute, parquet
except ImportError as error:
    raise SettingsError(
        expected="pyarrow, which reads Parquet and Arrow",
        got=str(error),
        where="this Python",
        remedy="Run `pip install 'stoker[parquet]'`.",
    ) from error

__all__ = ["compute", "pa", "parquet"]

pa = pyarrow
