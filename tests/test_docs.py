"""The pages for people: short where they should be, no link leads nowhere, what they quote is said, what they call is
there.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from contextlib import nullcontext
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.support.settings_table import PAGE, with_settings
from tests.test_architecture import FILES, of_types

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in (
        "*.md",
        "docs/*.md",
        "examples/**/*.md",
        "monitoring/*.md",
        "shared/*.md",
        "loader_server/**/*.md",
        "trainer_client/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
MOST_LINES = 150
#: A cell of a table holds a phrase; what takes more goes below the table, in sentences.
LONGEST_CELL = 260

#: Scheme and all: these are not looked up.
_ELSEWHERE = re.compile(r"https?://|mailto:")
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_MODULE = re.compile(r"python -m ([\w.]+)")
_TARGET = re.compile(r"`make ([\w-]+)")
_TEST = re.compile(r"`(test_\w+)`")
_PATH = re.compile(r"`((?:shared|loader_server|trainer_client|monitoring|tests|docs|examples)/[\w./-]*)`")
#: A row of a table that begins with a message.
_MESSAGE = re.compile(r"^\| `([^`]+)`", re.MULTILINE)
#: What stands for something else in a message as it is quoted: an ellipsis, a number.
_FILLED_IN = re.compile(r"…|\d+")


def text_of(page: str) -> str:
    """A page without its examples."""
    return _FENCED.sub("", (ROOT / page).read_text("utf-8"))


def links_of(page: str) -> list[tuple[Path, str]]:
    """The files that a page leads to, each with the place in it."""
    targets = _LINK.findall(_QUOTED.sub("", text_of(page)))
    parts = [target.partition("#") for target in targets if not _ELSEWHERE.match(target)]
    return [((ROOT / page).parent / file if file else ROOT / page, place) for file, _, place in parts]


def anchors_in(text: str) -> set[str]:
    """The places of a page, as GitHub names them."""
    found: list[str] = []
    for heading in _HEADING.findall(text):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = sum(name == re.sub(r"-\d+$", "", one) for one in found)
        found.append(f"{name}-{count}" if count else name)
    return set(found)


def leads_nowhere(file: Path, place: str) -> bool:
    return not file.exists() or bool(place and place not in anchors_in(_FENCED.sub("", file.read_text("utf-8"))))


def test_an_anchor_is_its_heading_as_github_writes_it() -> None:
    text = "# Whose slot is it?\n## `[job]`, and more\n### Keys\n#### Keys\nno # heading\n"
    assert anchors_in(text) == {"whose-slot-is-it", "job-and-more", "keys", "keys-1"}


def test_the_pages_are_all_there() -> None:
    found = {"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/settings.md", "monitoring/runbook.md"}
    assert found <= {*PAGES}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < MOST_LINES


@pytest.mark.parametrize("page", PAGES)
def test_a_cell_of_a_table_holds_a_phrase(page: str) -> None:
    rows = [line.strip("| ") for line in text_of(page).splitlines() if line.startswith("|")]
    cells = [cell for row in rows for cell in row.split(" | ")]
    assert [cell for cell in cells if len(cell) > LONGEST_CELL] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert [f"{file}#{place}" for file, place in links_of(page) if leads_nowhere(file, place)] == []


def test_every_page_and_picture_of_docs_is_found_from_the_readme() -> None:
    found, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop().resolve()
        if page not in found and page.exists():
            found.add(page)
            ahead += [file for file, _ in links_of(page.relative_to(ROOT).as_posix())] if page.suffix == ".md" else []
    assert {path for path in (ROOT / "docs").iterdir() if path.suffix in (".md", ".png", ".svg")} - found == set()


def test_the_settings_tables_are_the_codes() -> None:
    """After a change of settings, `python -m tests.support.settings_table` writes them anew."""
    text = PAGE.read_text("utf-8")
    assert text == with_settings(text)


def test_only_the_tables_of_settings_are_written_anew() -> None:
    text = "before\n<!-- settings -->\nold\n<!-- end of settings -->\nafter\n"
    new = with_settings(text)
    assert new.startswith("before\n<!-- settings -->\n`[job]`")
    assert new.endswith("|\n<!-- end of settings -->\nafter\n")


@pytest.mark.parametrize("page", PAGES)
def test_every_module_that_is_to_be_run_is_there(page: str) -> None:
    modules = {*_MODULE.findall((ROOT / page).read_text("utf-8"))} - {"pytest"}
    assert [name for name in sorted(modules) if importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_every_file_that_is_named_is_there(page: str) -> None:
    """A module may be named without its suffix."""
    named = _PATH.findall(text_of(page))
    assert [name for name in named if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()] == []


def test_every_test_that_is_named_is_there() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    tests = {*re.findall(r"def (test_\w+)\(", sources)}
    assert {page: unknown for page in PAGES if (unknown := {*_TEST.findall(text_of(page))} - tests)} == {}


def test_each_limit_of_the_security_page_names_a_test() -> None:
    section = text_of("SECURITY.md").partition("## Defaults and limits")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert [row for row in rows if not _TEST.search(row.split("|")[-2])] == []
    assert len(rows) > 20


@pytest.mark.parametrize("page", PAGES)
def test_every_target_of_make_is_there(page: str) -> None:
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text("utf-8").splitlines()}
    assert {*_TARGET.findall((ROOT / page).read_text("utf-8"))} - targets == set()


@cache
def said_in_code() -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """All that the packages could say, as patterns: what is filled in may be anything, as in the second ones."""
    nodes = chain.from_iterable(of_types(name, ast.Constant, ast.JoinedStr) for name in FILES)
    texts = {(_pattern_of(node), isinstance(node, ast.JoinedStr)) for node in nodes}
    filled_in = tuple(re.compile(text, re.DOTALL) for text, has_places in texts if text and has_places)
    return frozenset(text for text, _ in texts if text), filled_in


def _pattern_of(node: ast.Constant | ast.JoinedStr) -> str:
    values = node.values if isinstance(node, ast.JoinedStr) else [node]
    parts = [re.escape(one.value) if _is_text(one) else ".*" for one in values]
    return "".join(parts) if max((len(one) for one in parts), default=0) > 3 else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_said(piece: str) -> bool:
    """Whether it is a whole text of the code, or stands in one."""
    literal = re.escape(piece)
    texts, filled_in = said_in_code()
    return any(literal in text for text in texts) or any(pattern.fullmatch(piece) for pattern in filled_in)


@pytest.mark.parametrize("message", _MESSAGE.findall(text_of("docs/troubles.md")))
def test_a_message_that_is_explained_is_one_that_is_said(message: str) -> None:
    parts = message.removeprefix("expected ").split(", got ")
    pieces = [piece.strip() for part in parts for piece in _FILLED_IN.split(part)]
    assert [piece for piece in pieces if not is_said(piece)] == []


def test_a_message_that_is_not_said_is_noticed() -> None:
    assert not is_said("a coordinator that sings")


@pytest.mark.parametrize(("written", "passes"), [("ordered", False), ("ordered[:5]", True), ("ordered[:6]", False)])
def test_the_first_change_that_contributing_tells_of_can_be_made(written: str, *, passes: bool) -> None:
    page, source = ((ROOT / name).read_text("utf-8") for name in ("CONTRIBUTING.md", "shared/bad_limit.py"))
    assert source.count("in ordered)") == 1
    assert f"`{written}`" in page
    module = {"__name__": "shared.bad_limit"}
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(source.replace("in ordered)", f"in {written})") + example, module)
    with nullcontext() if passes else pytest.raises(AssertionError):
        module["test_only_the_most_frequent_reasons_are_named"]()


def test_events_on_the_page_of_logs_are_logged() -> None:
    text = (ROOT / "docs" / "logs.md").read_text("utf-8")
    events = {
        event
        for row in re.findall(r"^\| (`[a-z][^|]* [^|]*`) \| [^|]*\| ", text, re.MULTILINE)
        for event in re.findall(r"`([a-z]+ [^`]+)`", row)
    }
    code = "\n".join(
        path.read_text("utf-8")
        for room in ("shared", "loader_server", "trainer_client")
        for path in (ROOT / room).rglob("*.py")
    )
    assert len(events) > 15
    # "worker is there" is put together of the kind of member and what it did.
    code += "\n".join(f'"{kind} is {what}"' for kind in ("worker", "trainer") for what in ("there", "gone"))
    assert {event for event in events if f'"{event}"' not in code} == set()
