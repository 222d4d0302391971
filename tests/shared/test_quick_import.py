"""While a large library is imported no garbage is looked for; afterwards all is as before."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from shared.quick_import import quick_import
from tests.support.forked import start_code
from tests.support.loaders import ROOT


class Probe(list):
    """Made before what may freeze: Python counts what is frozen one by one, a seventh of a second for TensorFlow's."""

    def is_frozen(self):
        return not any(tracked is self for tracked in gc.get_objects())


@pytest.fixture(autouse=True)
def probe():
    """What is frozen here stays so for all tests that follow, and none of it would be looked through for cycles."""
    assert gc.isenabled()
    probe = Probe()
    assert not probe.is_frozen()
    yield probe
    gc.enable()
    assert not probe.is_frozen()


def test_no_garbage_is_looked_for_meanwhile():
    with quick_import():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_import_that_fails_leaves_nothing_changed():
    with pytest.raises(ImportError), quick_import():
        raise ImportError
    assert gc.isenabled()


#: In a process of its own, because it freezes all that is there.
_IMPORTS = """
import gc, sys
from shared.quick_import import quick_import
there, before = [], gc.get_freeze_count()
with quick_import():
    sys.modules["new"] = sys
print(gc.get_freeze_count() > before, any(one is there for one in gc.get_objects()), gc.isenabled())
"""


def test_what_is_there_after_an_import_is_not_looked_through_again():
    with start_code(_IMPORTS) as process:
        assert process.communicate(60.0) == ("True False True\n", "")


def test_where_nothing_is_imported_garbage_stays_garbage(probe):
    with quick_import():
        pass
    assert not probe.is_frozen()


def test_who_looks_for_no_garbage_goes_on_so(monkeypatch, probe):
    gc.disable()
    with quick_import(), quick_import():
        monkeypatch.setitem(sys.modules, "new", sys)
    assert not gc.isenabled()
    assert not probe.is_frozen()


#: Stands in for what is large: says how it is imported, and that it is not there.
_ASKED = """
import gc, sys
class Asked:
    def find_spec(self, name, path, target=None):
        if name in {names!r}:
            print(name, gc.isenabled())
            raise ImportError
sys.meta_path.insert(0, Asked())
"""


def imported(names, *tries):
    """How each try imports the first of these that it asks for: its name, and whether garbage was looked for."""
    program = _ASKED.format(names=names) + "from loader_server.cli import main\n"
    program += "".join(f"try: {one}\nexcept BaseException: pass\n" for one in tries)
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return said.stdout.splitlines()


def test_the_demos_trainer_and_a_worker_of_a_pipeline_import_tensorflow_so():
    tries = "from loader_server.sources.pipeline.shard_run import import_tensorflow; import_tensorflow()"
    said = imported(("tensorflow", "keras"), "import trainer_client.demo", tries)
    assert said == ["keras False", "tensorflow False"]


def test_commands_import_so_what_they_run():
    names = [f"loader_server.{name}" for name in ("coordinator.service", "worker.service", "commands.index")]
    commands = ("coordinator", "worker", "index", "run")
    said = imported(names, *(f"main([{name!r}, 'job.toml'])" for name in commands))
    assert said == [f"{name} False" for name in [*names, names[0]]]
