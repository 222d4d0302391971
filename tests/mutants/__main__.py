"""One-line mistakes, put into the code one at a time: which of them does a test notice?

    python -m tests.mutants [--pure 200] [--shells 100] [--seed 1] [--only shared/wire/codec.py] [--jobs 2] [--json]

Lines are drawn at random from the pure modules and from the shells around them; each mistake is tried in a copy of the
project, against the tests that run its line. What survived is printed as a difference: write the test that is missing,
or, if nothing that anyone could notice has changed, enter it in `equivalent.toml` with the reason. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants.cover import Cover, files_of_tests, is_fresh, measure
from tests.mutants.equivalent import read_equivalents, require_fresh
from tests.mutants.modules import KINDS, modules_of
from tests.mutants.sampling import Sample, draw, mutants_in
from tests.mutants.trial import Crew, Verdict, try_out

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_ROOT = Path(__file__).parents[2]


def _samples(options: argparse.Namespace) -> dict[str, Sample]:
    equivalents = read_equivalents()
    require_fresh(equivalents.values(), mutants_in(_ROOT, sorted({one.module for one in equivalents.values()})))
    return {
        kind: draw(mutants_in(_ROOT, modules_of(kind, options.only)), getattr(options, kind), options.seed, equivalents)
        for kind in KINDS
    }


def _cover(crew: Crew, only: Collection[str], say: Callable[[str], None]) -> Cover:
    files = files_of_tests(_ROOT, only)
    changed = [file for file in files if not is_fresh(_ROOT, file)]
    for number, file in enumerate(crew.each(functools.partial(measure, _ROOT), changed), 1):
        say(f"measured {number} of {len(changed)}: {file}")
    cover = Cover(_ROOT, files)
    for name in cover.unusable:
        say(f"not used, because it fails or takes too long as it is: {name}")
    return cover


def _judge(sample: Sample, kind: str, cover: Cover, crew: Crew, say: Callable[[str], None]) -> dict[str, float]:
    verdicts = []
    for verdict in crew.each(functools.partial(try_out, cover=cover), sample.mutants):
        verdicts.append(verdict)
        say(f"{kind} {len(verdicts)} of {len(sample.mutants)}: {_line(verdict)}")
    for mutant, known in sample.left_out:
        say(f"left out, {mutant.module}:{mutant.line}: {mutant.after} changes nothing: {known.reason}")
    found = sum(verdict.found for verdict in verdicts)
    share = round(found / len(verdicts), 3) if verdicts else 0.0
    survivors = sorted((one for one in verdicts if not one.found), key=lambda one: (one.mutant.module, one.mutant.line))
    say(f"\n{kind}: {found} of {len(verdicts)} found; survived:")
    for verdict in survivors:
        say(_difference(verdict))
    return {"sampled": len(verdicts), "found": found, "share": share}


def _line(verdict: Verdict) -> str:
    mutant = verdict.mutant
    how = f"{verdict.ending.why} {verdict.ending.test}".strip() if verdict.found else "SURVIVED"
    return f"{mutant.module}:{mutant.line} ({mutant.edit.operator}) {how}, {verdict.seconds:.1f} s"


def _difference(verdict: Verdict) -> str:
    mutant = verdict.mutant
    ran = f"{verdict.tests} tests ran it" if verdict.tests else "no quick test runs it"
    return f"\n{mutant.module}:{mutant.line} ({mutant.edit.operator}; {ran})\n  - {mutant.before}\n  + {mutant.after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pure", type=int, default=200, help="mutants in pure modules")
    parser.add_argument("--shells", type=int, default=100, help="mutants in the shells around them")
    parser.add_argument("--seed", type=int, default=1, help="another one gives another sample")
    parser.add_argument(
        "--only",
        default="",
        help="a module or a folder, from the root; tried with its own tests and those that import it",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="only the last line")
    options = parser.parse_args()
    say = (lambda _: None) if options.json else functools.partial(print, flush=True)
    samples = _samples(options)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        crew = Crew(_ROOT, options.jobs, Path(folder))
        only = {name for kind in KINDS for name in modules_of(kind, options.only)} if options.only else set()
        cover = _cover(crew, only, say)
        print(json.dumps({kind: _judge(samples[kind], kind, cover, crew, say) for kind in KINDS}))


if __name__ == "__main__":
    main()
