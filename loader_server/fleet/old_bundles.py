"""Removal of bundles that a state folder does not need any more, after a fetch and under the lock of the bundles.

Rules: bundles of living processes stay, and so do the newest few others, whole or begun, for hosts that join again. A
bundle is renamed before its first file is removed, so what a kill leaves behind is never taken for a bundle; the next
fetch removes it. What cannot be removed is logged, and hinders nobody.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from loader_server.fleet.host_folder import bundles_in_use
from shared.errors import MachineError
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["KEPT", "remove_old_bundles"]

#: Number of unused bundles that stay.
KEPT = 3

_BUNDLE = re.compile(r"[0-9a-f]{32}(\.draft)?")
_REMOVED = ".removed"


def remove_old_bundles(bundles: Path, hosts: Path) -> None:
    """Remove bundles that are neither in use nor among the newest; log what cannot be removed."""
    try:
        for path in _removable(bundles, bundles_in_use(hosts)):
            _remove(path)
    except (OSError, MachineError) as error:
        Log("join").warning("bundles that nobody uses cannot be looked for", folder=str(bundles), error=str(error))


def _remove(path: Path) -> None:
    log = Log("join", folder=str(path).removesuffix(_REMOVED))
    try:
        shutil.rmtree(path)
    except OSError as error:
        log.warning("a bundle that nobody uses cannot be removed", error=str(error))
    else:
        log.info("removed a bundle that nobody uses")


def _removable(bundles: Path, in_use: set[str] | None) -> Iterable[Path]:
    folders = [path for path in bundles.iterdir() if path.is_dir() and not path.is_symlink()]
    yield from (path for path in folders if path.name.endswith(_REMOVED))
    # If a folder in use cannot be read, any bundle may be the one that it uses.
    if in_use is None:
        return
    unused = [path for path in folders if _BUNDLE.fullmatch(path.name) and path.name not in in_use]
    unused.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in unused[KEPT:]:
        yield path.rename(path.with_name(path.name + _REMOVED))
