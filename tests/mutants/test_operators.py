"""Each operator makes the mistake that it says, and nothing that only people read is touched."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.operators import mutants_of


def mistakes(source, operator=None):
    """The first changed line of each mutant, which must still be Python."""
    found = []
    for mutant in mutants_of("toy.py", source.encode()):
        ast.parse(mutant.edit.apply(source.encode()))
        if operator in (None, mutant.edit.operator):
            found.append(mutant.after)
    return found


@pytest.mark.parametrize(
    ("operator", "source", "expected"),
    [
        ("comparison", "x = a < b", ["x = a <= b"]),
        ("comparison", "x = 0 <= a < b", ["x = 0 < a < b", "x = 0 <= a <= b"]),
        ("comparison", "x = (a) == (b)", ["x = (a) != (b)"]),
        ("comparison", "x = a is None", ["x = a is not None"]),
        ("comparison", "x = a is  not None", ["x = a is None"]),
        ("comparison", "x = inside not in b", ["x = inside in b"]),
        ("and/or", "x = a and b and c", ["x = a or b and c", "x = a and b or c"]),
        ("dropped not", "x = not (a and b)", ["x = (a and b)"]),
        ("dropped minus", "x = -a", ["x = a"]),
        ("arithmetic", "x = a + b * c", ["x = a - b * c", "x = a + b / c"]),
        ("arithmetic", "x = a // 'ö'.b", ["x = a * 'ö'.b"]),
        ("arithmetic", "x += a", ["x -= a"]),
        ("off by one", "x = a[1:]", ["x = a[2:]", "x = a[0:]"]),
        ("off by one", "x = 2.5", ["x = 3.5", "x = 1.5"]),
        ("true/false", "f(wait=True)", ["f(wait=False)"]),
        ("opposite function", "min(a, np.maximum(b, c))", ["max(a, np.maximum(b, c))", "min(a, np.minimum(b, c))"]),
        ("condition", "if f(a): pass", ["if not (f(a)): pass", "if True: pass", "if False: pass"]),
        ("condition", "while a < b: pass", ["while True: pass", "while False: pass"]),
        ("condition", "[a for a in b if c]", [f"[a for a in b if {c}]" for c in ("not (c)", "True", "False")]),
        ("returns none", "def f():\n    return (a,\n            b)", ["return None"]),
        ("dropped statement", "a.append(b)", ["pass"]),
        ("dropped statement", "def f():\n    yield a", ["pass"]),
        ("dropped statement", "raise a", ["pass"]),
        ("dropped statement", "del a[b]", ["pass"]),
        ("dropped statement", "self.a = self.b[c] = d", ["pass"]),
        ("dropped statement", "def __init__(self):\n    self.a = b\n    self.c(a)", ["pass"]),
        ("break/continue", "while a:\n    break", ["continue"]),
        ("break/continue", "while a:\n    continue", ["break"]),
    ],
)  # fmt: skip
def test_an_operator_makes_its_mistake(operator, source, expected):
    assert mistakes(source, operator) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "def f(a: 1 < 2) -> 3: ...",
        "__all__ = [*a[1:]]",
        "assert a < 1",
        "if TYPE_CHECKING:\n    f(1)",
        'if __name__ == "__main__":\n    main(1)',
        "@dataclass(frozen=True)\nclass A:\n    a: int",
        "self.log.info('a', b=1 + 2)",
        "x = f'{a + 1}'",
        "x = 'a' + b",
        "x = SettingsError(got=a[:40])",
        "x = zip(a, b, strict=True)",
    ],
)
def test_what_only_people_read_is_left_alone(source):
    assert mistakes(source) == []


def test_of_an_error_or_a_warning_only_the_whole_is_dropped():
    assert mistakes("raise ValueError(a + 1)") == ["pass"]
    assert mistakes("self.log.warning('a', b=a + 1)") == ["pass"]


def test_arms_of_try_and_match_are_reached():
    source = "try:\n    a()\nexcept E:\n    b()\nmatch c:\n    case 1 if d:\n        e()"
    lines = {mutant.line for mutant in mutants_of("toy.py", source.encode())}
    assert lines == {2, 4, 6, 7}


def test_a_place_knows_what_runs_it():
    source = "LIMIT = 3\nclass A:\n    size: int = 4\n    def f(self, a=5):\n        if a:\n            return 6\n"
    found = {
        mutant.before: (mutant.place.function, mutant.place.defines, mutant.place.header())
        for mutant in mutants_of("toy.py", source.encode())
    }
    assert found == {
        "LIMIT = 3": ("", ("LIMIT",), range(1, 2)),
        "size: int = 4": ("", ("size",), range(3, 4)),
        "def f(self, a=5):": ("", ("f",), range(4, 5)),
        "if a:": ("f", (), range(5, 6)),
        "return 6": ("f", (), range(6, 7)),
    }
