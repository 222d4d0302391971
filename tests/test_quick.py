"""`make quick` runs the tests of all pure modules, and none that starts processes."""

from __future__ import annotations

from tests import quick


def test_tests_of_pure_modules_are_quick_and_those_of_processes_are_not():
    found = quick.files()
    assert set(found) >= {
        "tests/loader_server/planning/test_tiny.py",  # no module's mirror, but of a pure room
        "tests/shared/test_rounds.py",
        "tests/test_architecture.py",
        "tests/trainer_client/core/asking/test_wants.py",
    }
    assert not set(found) & {
        "tests/shared/test_memory.py",
        "tests/trainer_client/core/test_simulated_worlds.py",
        "tests/trainer_client/test_feed.py",
    }
