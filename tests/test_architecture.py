"""What may import what, what is public, and what the code never does."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import loader_server
import shared
import trainer_client

ROOT = Path(__file__).parents[1]
PACKAGES = ("shared", "loader_server", "trainer_client")
FILES = {
    path.relative_to(ROOT).as_posix(): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
}

#: Modules that take the clock, the socket and the disk as arguments. A slash at the end stands for a folder.
PURE = (
    "shared/wire/bounds.py",
    "shared/wire/codec.py",
    "shared/config.py",
    "shared/endpoints.py",
    "shared/errors.py",
    "shared/hashing.py",
    "shared/wire/layout.py",
    "shared/wire/messages.py",
    "shared/wire/payload.py",
    "shared/metrics/names.py",
    "shared/wire/permissions.py",
    "shared/rounds.py",
    "shared/silence.py",
    "loader_server/building/blame.py",
    "loader_server/coordinator/convictions.py",
    "loader_server/coordinator/events.py",
    "loader_server/coordinator/refusals.py",
    "loader_server/coordinator/report.py",
    "loader_server/coordinator/seats.py",
    "loader_server/coordinator/state.py",
    "loader_server/coordinator/succession.py",
    "loader_server/coordinator/workers.py",
    "loader_server/building/culprits.py",
    "loader_server/fleet/autoscale.py",
    "loader_server/wants/budget.py",
    "loader_server/building/exhaustion.py",
    "loader_server/worker/membership.py",
    "loader_server/wants/open_wants.py",
    "loader_server/worker/patience.py",
    "loader_server/planning/",
    "loader_server/worker/refusals.py",
    "loader_server/wants/sessions.py",
    "loader_server/wants/tickets.py",
    "loader_server/wants/want_queue.py",
    "trainer_client/core/",
)
#: Named in the design and not built yet; whoever builds one takes it out here.
NOT_YET = frozenset(("loader_server/fleet/autoscale.py",))

#: What a pure module has no business with.
WORLD = frozenset(
    (
        *("asyncio", "datetime", "mmap", "multiprocessing", "os", "pathlib", "queue", "random", "secrets", "select"),
        *("selectors", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "zmq"),
    )
)

#: Parsing what someone else wrote must never run it.
RUNS_CODE = frozenset(("cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"))


#: Modules that write a date down for people. All else goes by clocks that nobody sets.
DATED = ("loader_server/building/quarantine.py", "shared/logs.py", "trainer_client/load_test/command.py")


@functools.cache
def tree(name):
    return ast.parse(FILES[name].read_text("utf-8"), name)


def imports(name, *, at_run_time=True):
    """The modules that a file imports anywhere in it; those for type checkers only if they are asked for as well."""
    found = set()
    body = tree(name)
    ignored = {
        id(inner)
        for node in ast.walk(body)
        if at_run_time and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(body):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            found |= {node.module or ""}
    return found


def roots(modules):
    return {module.split(".")[0] for module in modules}


def files_of(entry):
    return [name for name in FILES if name == entry or (entry.endswith("/") and name.startswith(entry))]


PURE_FILES = [name for entry in PURE for name in files_of(entry)]


@pytest.mark.parametrize("entry", PURE)
def test_the_list_of_pure_modules_is_true(entry):
    assert bool(files_of(entry)) != (entry in NOT_YET), f"{entry} is gone, or is not missing any more"


@pytest.mark.parametrize("name", PURE_FILES)
def test_a_pure_module_knows_nothing_of_the_world(name):
    assert not roots(imports(name)) & WORLD
    for module in imports(name):
        inner = module.replace(".", "/") + ".py"
        if inner in FILES:
            assert inner in PURE_FILES, f"{name} is pure and imports {module}, which is not"


@pytest.mark.parametrize("name", FILES)
def test_packages_keep_apart(name):
    package = name.split("/")[0]
    forbidden = {
        "shared": {"loader_server", "trainer_client", "tests"},
        "loader_server": {"trainer_client", "tests"},
        "trainer_client": {"loader_server", "tests"},
    }
    assert not roots(imports(name, at_run_time=False)) & forbidden[package]


@pytest.mark.parametrize("name", FILES)
def test_nothing_in_the_code_runs_what_it_reads(name):
    assert not roots(imports(name, at_run_time=False)) & RUNS_CODE
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Name):
            assert node.id not in ("eval", "exec", "compile"), f"{name}:{node.lineno}"
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("send_pyobj", "recv_pyobj", "unsafe_load"), f"{name}:{node.lineno}"
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "shell"):
            assert isinstance(node.value, ast.Constant), f"{name}:{node.value.lineno}"
            assert node.value.value is False, f"{name}:{node.value.lineno}"


@pytest.mark.parametrize("name", FILES)
def test_only_what_people_read_is_timed_by_the_time_of_day(name):
    assert ("datetime" in roots(imports(name))) == (name in DATED), f"{name}: a clock that somebody may set"
    assert not re.search(r"\btime\.(time|gmtime|localtime)|\bfrom time import .*\btime", FILES[name].read_text("utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_a_module_says_what_it_is_for_and_what_is_public(name):
    body = tree(name)
    assert ast.get_docstring(body), f"{name} opens without a docstring"
    listed = [
        ast.literal_eval(node.value)
        for node in body.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and "__all__" in ast.unparse(node).split("=")[0]
    ]
    if not name.endswith(("__init__.py", "__main__.py")):
        assert listed, f"{name} has no __all__"
    defined = {node.name for node in body.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {node.id for node in ast.walk(body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    defined |= {
        alias.asname or alias.name
        for node in ast.walk(body)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for names in listed:
        assert set(names) <= defined
        assert len(names) == len(set(names))


# --- the public face ---


def test_the_public_names_of_the_packages():
    assert not hasattr(shared, "__all__")
    assert [name for name in vars(shared) if name.isupper()] == ["DISTRIBUTION"]
    assert loader_server.__all__ == []
    assert sorted(trainer_client.__all__) == sorted(TRAINER_CLIENT)


TRAINER_CLIENT = (
    "Batch",
    "ClosedError",
    "DataError",
    "Feed",
    "FeedCheckpoint",
    "LostError",
    "PeerError",
    "ProtocolError",
    "ReadError",
    "Reading",
    "RefusedError",
    "SampleError",
    "SettingsError",
    "StokerError",
    "connect",
)


# --- what an import costs, and whom it meets ---


def run(code, *, cwd=ROOT):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def module_of(name):
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_loaders_and_the_plain_feed_need_no_tensorflow():
    modules = [
        module_of(name) for name in FILES if name.startswith(("loader_server/", "shared/")) and "__main__" not in name
    ]
    code = (
        f"import importlib, sys\nfor name in {['trainer_client', 'trainer_client.feed', *modules]!r}:\n"
        "    importlib.import_module(name)\n"
        "assert sys.modules.keys() >= {'trainer_client.network.receiver', 'loader_server.worker.service'}\n"
        "print(sorted({'tensorflow', 'keras', 'torch'} & sys.modules.keys()))"
    )
    done = run(code)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_an_import_starts_and_opens_nothing():
    code = (
        "import os, threading\nbefore = len(os.listdir('/proc/self/fd'))\n"
        "import trainer_client, loader_server.worker.service, loader_server.coordinator.service\n"
        "print(threading.active_count(), len(os.listdir('/proc/self/fd')) - before)"
    )
    assert run(code).stdout == "1 0\n"


@pytest.mark.parametrize("package", ["trainer_client", "loader_server"])
@pytest.mark.parametrize("theirs", ["shared/__init__.py", "shared.py"])
def test_a_users_own_shared_is_named_with_the_remedy(package, theirs, tmp_path):
    (tmp_path / theirs).parent.mkdir(exist_ok=True)
    (tmp_path / theirs).write_text("HELPERS = 1\n")
    done = run(f"import {package}", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == (
        f"ImportError: expected stoker's own package `shared`, got {tmp_path / theirs}. Another folder of that name "
        "comes first on sys.path: rename it, or start from another directory."
    )


def test_a_users_folder_without_init_shadows_nothing(tmp_path):
    (tmp_path / "shared").mkdir()
    done = run("import trainer_client, shared; print(shared.DISTRIBUTION)", cwd=tmp_path)
    assert done.stdout == "stoker\n", done.stderr
