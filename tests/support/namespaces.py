"""Whether processes can be started in namespaces of their own here: that takes root, and more in some containers."""

from __future__ import annotations

import os
import shutil
import subprocess

__all__ = ["why_no_namespaces"]


def why_no_namespaces(*options: str) -> str:
    """Return why `unshare` with these options cannot be had here; empty if it can."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "namespaces need root and unshare"
    made = subprocess.run(["unshare", *options, "true"], capture_output=True, text=True, check=False)
    return made.stderr.strip() if made.returncode else ""
