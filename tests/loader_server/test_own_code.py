"""What a user's own transform is made of: its sources, those that it imports from beside it, and installed versions."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import subprocess
import sys
import textwrap
import zipfile
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING

import pytest

from loader_server import own_code as module
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.own_code import own_code, own_files
from loader_server.stream import Stream
from loader_server.transforms.chain import Chain
from tests.support.loaders import ROOT, write_job

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "augment.py": """
        import math, numpy, loud
        import tools.deep.constants as constants
        from tools import levels
        from loader_server.transforms.declare import transform
        from missing import nothing

        def noise(sample, rng):
            from late import LEVEL
    """,
    "loud.py": "from os import path\nimport augment\nLEVEL = 1\n",
    "late.py": 'raise RuntimeError("nobody has to run this")\n',
    "tools/__init__.py": "NAME = 1\n",
    "tools/levels.py": "from . import quiet\nfrom .deep import further\nfrom ....beyond import everything\n",
    "tools/quiet.py": "LEVEL = 1\n",
    "tools/unused.py": "LEVEL = 1\n",
    "tools/deep/constants.py": "LEVEL = 1\n",
    "tools/deep/further.py": "def this is no Python\n",
    "beside.py": "LEVEL = 1\n",
}
COUNTED = sorted(set(FILES) - {"tools/unused.py", "beside.py"})


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    importlib.invalidate_caches()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write(tmp_path, FILES)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def sources() -> str:
    return own_code(["augment"]).sources


@pytest.mark.parametrize("name", COUNTED)
def test_every_module_that_is_imported_from_beside_it_counts(folder, name):
    before = sources()
    assert sources() == before
    (folder / name).write_text((folder / name).read_text() + "\n# changed\n")
    assert sources() != before


@pytest.mark.parametrize("name", sorted(set(FILES) - set(COUNTED)))
def test_a_module_that_nobody_imports_does_not(folder, name):
    before = sources()
    (folder / name).write_text("LEVEL = 2\n")
    assert sources() == before


def test_nothing_is_run_or_imported(folder):
    before = set(sys.modules)
    sources()
    assert not {"augment", "loud", "late", "tools", "tools.deep"} & (set(sys.modules) - before)


def test_every_process_finds_the_same(folder):
    code = "from loader_server.own_code import own_code; print(own_code(['augment']).sources)"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert found == {sources() + "\n"}


def test_modules_in_an_archive_do_not_count(folder, monkeypatch):
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", "")
        archive.writestr("zipped/inner.py", "")
    before = own_code([]).sources
    monkeypatch.syspath_prepend(folder / "archive.zip")
    assert own_code(["zipped", "zipped.inner"]).sources == before


def test_python_ours_and_what_is_missing_do_not_count(folder):
    assert own_code(["json", "sys", "no_such_module", "loader_server.commands.status"]) == own_code([])
    before = sources()
    text = (folder / "loud.py").read_text()
    write(folder, {"loud.py": text, "loader_server.py": "", "loader_server/transforms/declare.py": ""})
    assert sources() == before


INSTALLED = {
    "site-packages/effects/__init__.py": "import effects.inner\n",
    "site-packages/effects/inner.py": "LEVEL = 1\n",
    "site-packages/Sound_Effects-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: Sound_Effects\nVersion: 1.5\n",
    "site-packages/Sound_Effects-1.5.dist-info/top_level.txt": "effects\n",
    "augment.py": "from effects import echo\n",
}


@pytest.fixture
def installed(folder, monkeypatch):
    write(folder, INSTALLED)
    monkeypatch.syspath_prepend(folder / "site-packages")
    module._distributions.cache_clear()
    yield folder / "site-packages"
    module._distributions.cache_clear()


def test_an_installed_package_goes_by_its_version(installed):
    before = own_code(["augment"])
    assert before.packages == {"Sound_Effects": "1.5"}
    write(installed, {"effects/inner.py": "LEVEL = 2\n", "effects/__init__.py": ""})
    assert own_code(["augment"]) == before


@pytest.mark.parametrize(
    "record",
    ["effects/__init__.py,,", '"effects/a, b.py",,', "effects.py,,", "effects.cpython-311-x86_64-linux-gnu.so,,"],
)
def test_a_package_that_lists_its_files_alone_is_found_as_well(installed, record):
    told = installed / "Sound_Effects-1.5.dist-info"
    (told / "top_level.txt").unlink()
    (told / "RECORD").write_text(f"../bin/effects,,\nineffective/effects/a.py,,\neffects_more.py,,\n{record}\n")
    assert own_code(["augment"]).packages == {"Sound_Effects": "1.5"}
    (told / "RECORD").write_text((told / "RECORD").read_text().replace(record, ""))
    module._distributions.cache_clear()
    assert own_code(["augment"]).packages == {}


def test_what_is_installed_is_found_as_importlib_finds_it():
    told = {top: set(names) for top, names in packages_distributions().items() if top in sys.modules}
    found = module._distributions()
    assert {top: {one.metadata["Name"] for one in found.get(top, ())} for top in told} == told


def test_a_transform_that_is_installed_goes_by_its_own_source_as_well(installed):
    before = own_code(["effects"])
    assert before.packages == {"Sound_Effects": "1.5"}
    write(installed, {"effects/inner.py": "LEVEL = 2\n"})
    assert own_code(["effects"]) == before
    write(installed, {"effects/__init__.py": "import effects.inner  # changed\n"})
    assert own_code(["effects"]).sources != before.sources


def test_a_package_that_is_installed_within_pythons_own_folder_counts(installed, monkeypatch):
    before = own_code(["effects"])
    monkeypatch.setattr(module, "_STANDARD_LIBRARY", frozenset([installed.parent]))
    assert own_code(["effects"]) == before
    assert own_code(["augment"]) == own_code([])


# --- in a chain ---


def chain(name: str) -> Chain:
    return Chain.make((name,), {}, "test", ())


def test_versions_of_what_a_transform_imports_are_the_chains_and_not_the_recipes(installed):
    write(installed.parent, {"own_effects.py": "import effects\ndef echo(sample, rng): pass\n"})
    before = chain("own_effects:echo")
    write(
        installed,
        {"Sound_Effects-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: Sound_Effects\nVersion: 1.6\n"},
    )
    after = chain("own_effects:echo")
    assert after.recipe == before.recipe
    assert after.fingerprint != before.fingerprint


@pytest.mark.parametrize("name", ["facade", "hidden"])
def test_both_the_module_that_is_named_and_that_which_defines_the_function_count(folder, monkeypatch, name):
    facade = """
        import importlib
        LEVEL = 1
        hidden = importlib.import_module("hidden" + "_here").hidden
    """
    write(folder, {"facade_here.py": facade, "hidden_here.py": "def hidden(sample, rng): pass\n"})
    before = chain("facade_here:hidden").recipe
    with (folder / f"{name}_here.py").open("a") as file:
        file.write("# changed\n")
    assert chain("facade_here:hidden").recipe != before


# --- in a job ---

TRANSFORM = """
    from loader_server.transforms.declare import transform
    from helper import LEVEL

    @transform()
    def louder(sample, rng):
        sample["audio"] = sample["audio"] * LEVEL
"""


def test_another_constant_in_a_helper_module_is_another_builder_of_the_same_plan(tmp_path, monkeypatch):
    write(tmp_path, {"own_transform.py": TRANSFORM, "helper.py": 'LEVEL = __import__("numpy").float32(2)\n'})
    job = JobFile(write_job(tmp_path, samples=8, transforms=("own_transform:louder", "logmel")))
    monkeypatch.syspath_prepend(tmp_path)
    index_streams(job, ["train"], processes=1)
    facts = []
    for level in (2, 2, 3):
        write(tmp_path, {"helper.py": f'LEVEL = __import__("numpy").float32({level})\n'})
        stream = Stream(job, "train")
        facts.append((stream.digest, stream.builder))
        stream.close()
    assert facts[0] == facts[1]
    assert facts[2][0] == facts[0][0]
    assert facts[2][1] != facts[0][1]


def test_files_are_those_that_count_below_the_folder_under_the_names_of_their_modules(folder):
    assert own_files(["augment"], folder) == {name: folder / name for name in COUNTED}
    below = folder / "tools"
    assert own_files(["augment"], below) == {name: folder / name for name in COUNTED if name.startswith("tools/")}
    assert own_files(["json", "numpy", "no_such_module", "loader_server.stream"], folder) == {}


def test_files_of_a_module_in_a_package_have_the_packages_on_the_way(folder):
    write(folder, {"tools/alone.py": "LEVEL = 1\n"})
    assert set(own_files(["tools.alone"], folder)) == {"tools/__init__.py", "tools/alone.py"}


def test_files_below_a_folder_that_is_imported_from_are_named_from_there(folder, monkeypatch):
    write(folder, {"src/inner/__init__.py": "", "src/inner/more.py": ""})
    monkeypatch.syspath_prepend(folder / "src")
    found = own_files(["inner.more"], folder)
    assert found == {name: folder / "src" / name for name in ("inner/__init__.py", "inner/more.py")}


def test_what_is_installed_in_an_environment_below_the_folder_is_no_file_of_ones_own(folder, monkeypatch):
    write(folder, {"venv/site-packages/effects.py": "LEVEL = 1\n", "augment.py": "import effects\n"})
    monkeypatch.syspath_prepend(folder / "venv" / "site-packages")
    assert set(own_files(["augment", "effects"], folder)) == {"augment.py"}


def test_modules_that_are_compiled_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (tmp_path / f"fast_loops{suffix}").write_bytes(b"never run")
    (tmp_path / "uses_loops.py").write_text("import fast_loops\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert own_code(["uses_loops"]).compiled == ("fast_loops",)
    assert own_code(["loader_server.stream"]).compiled == ()
