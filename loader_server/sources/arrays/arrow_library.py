"""pyarrow, imported here alone, or the error that says how to install it."""

from __future__ import annotations

from functools import partial

from shared.extras import library

__all__ = ["compute", "pa", "parquet"]

_import = partial(library, extra="parquet", use="which reads Parquet and Arrow")

pa = _import("pyarrow")
compute = _import("pyarrow.compute")
parquet = _import("pyarrow.parquet")
