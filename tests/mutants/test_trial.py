"""Mutants of a toy project are found or survive as they should, in a copy, against the tests that run their lines."""

from __future__ import annotations

import functools
import shutil

import pytest

from tests.mutants.cover import Cover, files_of_tests, is_fresh, measure
from tests.mutants.operators import mutants_of
from tests.mutants.trial import EFFORT_S, Crew, try_out
from tests.mutants.workplace import Ending, Limits

GATE = """
LIMIT = 3
TABLE = []


def _enter(number):
    TABLE.append(number)


_enter(1)


def may_enter(age, guests):
    return age >= 18 and guests <= LIMIT


def count_down(number):
    while number > 0:
        number -= 1
    return number


def never_called():
    return 1


assert LIMIT > 2
"""

TESTS = """
import pytest

from toy.gate import TABLE, count_down, may_enter


def test_the_age_matters():
    assert may_enter(20, 1)
    assert not may_enter(10, 1)


def test_guests_are_few():
    assert not may_enter(10, 5)


def test_it_ends():
    assert count_down(3) == 0


def test_it_fails_as_it_is():
    assert count_down(3) == 7


def test_the_table_is_full():
    assert TABLE == [1]


@pytest.mark.skip(reason="not here")
def test_elsewhere():
    pass
"""

FILES = {"toy/__init__.py": "", "toy/gate.py": GATE, "tests/test_gate.py": TESTS, "pytest.ini": "[pytest]\n"}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The project, a crew of one, and what its tests cover."""
    root = tmp_path_factory.mktemp("toy")
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    crew = Crew(root, 1, tmp_path_factory.mktemp("places"))
    assert [*crew.each(lambda file, place: measure(root, file, place), files_of_tests(root))] == ["tests/test_gate.py"]
    return root, crew, Cover(root, files_of_tests(root))


def mutant(before, after):
    found = [one for one in mutants_of("toy/gate.py", GATE.encode()) if (one.before, one.after) == (before, after)]
    assert len(found) == 1
    return found[0]


@functools.cache
def verdict(toy, *change, effort_s=EFFORT_S):
    _, crew, cover = toy
    (found,) = crew.each(lambda one, place: try_out(one, place, cover, effort_s), [mutant(*change)])
    return found


RESULT = "return age >= 18 and guests <= LIMIT"


def test_a_mistake_that_a_test_notices_is_found(toy):
    found = verdict(toy, RESULT, RESULT.replace("and", "or"))
    assert found.ending == Ending("failed", "tests/test_gate.py::test_the_age_matters")
    assert found.found
    assert found.tests == 2


def test_one_that_no_test_notices_survives(toy):
    survivor = verdict(toy, RESULT, RESULT.replace("18", "19"))
    assert (survivor.found, survivor.tests) == (False, 2)


def test_what_no_test_runs_survives_without_a_run(toy):
    survivor = verdict(toy, "return 1", "return 2")
    assert (survivor.found, survivor.tests) == (False, 0)


def test_a_constant_meets_the_tests_that_run_where_it_is_used(toy):
    survivor = verdict(toy, "LIMIT = 3", "LIMIT = 4")
    assert (survivor.found, survivor.tests) == (False, 4)
    assert verdict(toy, "LIMIT = 3", "LIMIT = 2").ending.why == "cannot be imported"


def test_a_table_that_is_filled_at_import_meets_them_too(toy):
    assert verdict(toy, "TABLE.append(number)", "pass").ending.test == "tests/test_gate.py::test_the_table_is_full"


def test_a_loop_without_an_end_is_found(toy):
    _, crew, _ = toy
    endless = mutant("while number > 0:", "while True:")

    def run(_, place):
        source = (place.root / endless.module).read_bytes()
        with place.holding(endless.module, endless.edit.apply(source)):
            return place.run(["tests/test_gate.py::test_it_ends"], Limits(1, 20))

    assert [*crew.each(run, [None])] == [Ending("failed", "tests/test_gate.py::test_it_ends")]


def test_slow_tests_are_left_aside(toy):
    survivor = verdict(toy, RESULT, RESULT.replace("and", "or"), effort_s=0)
    assert (survivor.found, survivor.tests) == (False, 0)


def test_tests_that_fail_without_a_mistake_are_named_and_not_used(toy):
    _, _, cover = toy
    assert cover.unusable == ["tests/test_gate.py::test_it_fails_as_it_is"]


def test_nothing_is_left_of_a_mutant(toy):
    root, crew, _ = toy
    verdict(toy, RESULT, RESULT.replace("and", "or"))
    assert {name: (root / name).read_text() for name in FILES} == FILES
    assert {path.name for path in root.rglob("*.py")} == {"__init__.py", "gate.py", "test_gate.py"}
    assert not [*root.rglob("__pycache__")]
    run = crew.each(lambda test, place: place.run([test], Limits(5, 20)), ["tests/test_gate.py::test_the_age_matters"])
    assert [*run] == [Ending("")]


def test_tests_are_measured_again_when_what_they_import_has_changed(toy, tmp_path):
    root = shutil.copytree(toy[0], tmp_path / "toy")
    assert is_fresh(root, "tests/test_gate.py")
    (root / "toy/gate.py").write_text(GATE + "# more\n")
    assert not is_fresh(root, "tests/test_gate.py")
