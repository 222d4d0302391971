"""The reference of what users import, made from docstrings by pdoc: `make docs`.

`python -m tests.support.reference FOLDER` writes a page for each public module, which needs no network to be read.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pdoc.doc
import pdoc.render

import trainer_client

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PAGES", "main", "write_reference"]

#: The modules, each with the package that it needs beside our own.
PAGES = {
    "trainer_client": "tensorflow",
    "trainer_client.training.losses": "tensorflow",
    "trainer_client.layers": "tensorflow",
    "trainer_client.torch": "torch",
    "trainer_client.jax": "jax",
}


#: What a page begins with; the rest follows by the alphabet.
_FIRST = ("connect", "Feed", "Reading", "Batch", "FeedCheckpoint", "Run", "Until", "EarlyStop", "Validation")


def write_reference(folder: Path) -> list[str]:
    """Write the pages into a folder, and return the modules that have one: those whose packages are installed."""
    names = [name for name, package in PAGES.items() if importlib.util.find_spec(package) is not None]
    for name in trainer_client.__all__:
        getattr(trainer_client, name)  # imports it, because pdoc documents what is there
    modules = {name: _documented(name) for name in names}
    pdoc.render.configure(docformat="google", show_source=False)
    for name, module in modules.items():
        page = folder / f"{name.replace('.', '/')}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(pdoc.render.html_module(module, modules), "utf-8")
    (folder / "index.html").write_text(pdoc.render.html_index(modules), "utf-8")
    (folder / "search.js").write_text(pdoc.render.search_index(modules), "utf-8")
    return names


def _documented(name: str) -> pdoc.doc.Module:
    """Return a module as its page shows it: what users begin with comes first, and what they never call is left out."""
    module = pdoc.doc.Module(importlib.import_module(name))
    first = [member for member in _FIRST if member in module.members]
    module.members = {member: module.members[member] for member in [*first, *module.members]}
    for kind in module.classes:
        kind.members = {name: member for name, member in kind.members.items() if _is_shown(kind, name, member)}
    return module


def _is_shown(kind: pdoc.doc.Class, name: str, member: pdoc.doc.Doc[object]) -> bool:
    """Return whether users call it: no hook of Keras, and a constructor only if its arguments are explained."""
    if name == "__init__":
        return "Args:" in kind.docstring
    return bool(member.docstring) and not name.startswith("on_")


def main(arguments: Sequence[str]) -> None:
    """Write the pages and say where they are."""
    folder = Path(arguments[0] if arguments else "build/reference")
    modules = write_reference(folder)
    print(f"The reference of {', '.join(modules)} is {folder / 'trainer_client.html'}.")


if __name__ == "__main__":
    main(sys.argv[1:])
