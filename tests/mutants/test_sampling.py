"""Samples repeat themselves, outlive changes elsewhere in a module, and leave out what is known to change nothing."""

from __future__ import annotations

import pytest

from tests.mutants.equivalent import Equivalent, read_equivalents, require_fresh
from tests.mutants.modules import KINDS, modules_of
from tests.mutants.operators import mutants_of
from tests.mutants.sampling import draw, mutants_in
from tests.support.forked import ROOT

SOURCE = "\n".join(f"x{number} = f({number}) < a" for number in range(100))


def lines(count=20, seed=1, source=SOURCE, known=()):
    return [(one.before, one.after) for one in draw_from(source, count, seed, known).mutants]


def draw_from(source, count, seed, known=()):
    equivalents = {(one.module, one.line, one.becomes): one for one in known}
    return draw([*mutants_of("toy.py", source.encode())], count, seed, equivalents)


def test_a_seed_names_a_sample():
    assert lines() == lines()
    assert lines(seed=2) != lines()
    assert lines(count=30)[:20] == lines()


def test_each_line_has_at_most_one_mistake_and_the_same_chance():
    sample = lines(count=1000)
    assert len({before for before, _ in sample}) == len(sample) == 100
    first = [int(before[1 : before.index(" ")]) for seed in range(40) for before, _ in lines(5, seed)]
    assert min(first) < 10
    assert max(first) >= 90
    assert abs(sum(first) / len(first) - 49.5) < 8


def test_a_sample_outlives_changes_elsewhere():
    moved = "import b\n" + SOURCE.replace("x50 = f(50) < a", "x50 = g(50)")
    kept = [line for line in lines() if not line[0].startswith("x50 ")]
    assert [line for line in lines(source=moved) if line in kept] == kept[: len(kept)]


def test_equal_lines_are_lines_of_their_own():
    assert lines(source="f()\nf()\n") == [("f()", "pass")] * 2


def test_what_is_known_to_change_nothing_is_replaced():
    before, after = lines()[3]
    known = Equivalent("toy.py", before, after, "the result is not used")
    sample = draw_from(SOURCE, 20, 1, [known])
    assert [one.after for one, _ in sample.left_out] == [after]
    assert [(one.before, one.after) for one in sample.mutants] == [line for line in lines(21) if line[0] != before]


def test_an_entry_that_names_no_mistake_any_more_is_an_error():
    mutants = [*mutants_of("toy.py", SOURCE.encode())]
    fresh = Equivalent("toy.py", "x1 = f(1) < a", "x1 = f(1) <= a", "")
    require_fresh([fresh], mutants)
    stale = Equivalent("toy.py", "x1 = f(1) > a", "x1 = f(1) >= a", "")
    with pytest.raises(ValueError, match=r"cannot be made any more.*\n  toy.py: x1 = f\(1\) > a  ->  x1 = f\(1\) >= a"):
        require_fresh([fresh, stale], mutants)


def test_every_entry_of_the_list_says_why_and_is_of_a_line_that_is_there():
    equivalents = read_equivalents().values()
    assert all(len(one.reason) > 20 for one in equivalents)
    require_fresh(equivalents, mutants_in(ROOT, sorted({one.module for one in equivalents})))


def test_modules_are_pure_or_shells_and_no_commands():
    pure, shells = (set(modules_of(kind)) for kind in KINDS)
    assert not pure & shells
    assert {"shared/wire/codec.py", "loader_server/planning/plan.py", "loader_server/wants/tickets.py"} <= pure
    assert {"shared/sockets.py", "loader_server/worker/service.py", "trainer_client/session/feed_session.py"} <= shells
    assert not [name for name in pure | shells if "demo" in name or "load_test" in name or "cli" in name.split("/")]
    assert modules_of("pure", "shared/wire/codec.py") == ["shared/wire/codec.py"]
    assert set(modules_of("pure", "shared/")) == {name for name in pure if name.startswith("shared/")}
