"""What counts as shown by a page, and as printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.examples.readmes import Shown, not_printed, shown_in

if TYPE_CHECKING:
    from pathlib import Path

PAGE = """# An example
```toml
name = "digits"
```
## Run it
```
$ python one.py --all \\
      --twice
made 3 files
…
$ python two.py
```
"""


def test_commands_have_their_heading_and_their_lines(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(PAGE)
    assert shown_in(page) == [
        Shown(heading="Run it", command="python one.py --all --twice", lines=["made 3 files", "…"]),
        Shown(heading="Run it", command="python two.py", lines=[]),
    ]


def test_a_line_may_differ_in_its_numbers_and_in_what_is_left_out() -> None:
    printed = "noise\nmade 12 files in 0:00:03\nloss 0.25 (12 samples), at last\n"
    assert not_printed(["made 3 files in 1:10:00", "…", "loss 12.5 (…)…"], printed) == []


def test_a_line_in_other_words_or_out_of_order_was_not_printed() -> None:
    printed = "made 12 files\nloss 0.25\n"
    assert not_printed(["made 12 clips"], printed) == ["made 12 clips"]
    assert not_printed(["loss 0.25", "made 12 files"], printed) == ["made 12 files"]
    assert not_printed(["loss 0.25 and more"], printed) == ["loss 0.25 and more"]
