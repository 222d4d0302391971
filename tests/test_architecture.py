"""What may import what, what is public, what the code never does, and how large its rooms are."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import loader_server
import loader_server.transforms
import shared
import trainer_client
from trainer_client import Batch, Feed, Reading

ROOT = Path(__file__).parents[1]
PACKAGES = ("shared", "loader_server", "trainer_client")
FILES = {
    path.relative_to(ROOT).as_posix(): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
}


def module_of(name):
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


#: The file of each module.
MODULES = {module_of(name): name for name in FILES}

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
def text(name):
    return FILES[name].read_text("utf-8")


@functools.cache
def tree(name):
    return ast.parse(text(name), name)


@functools.cache
def nodes(name):
    """All of a file's nodes by type: going through a tree takes longer than parsing it, and many tests do."""
    found = {}
    for node in ast.walk(tree(name)):
        found.setdefault(type(node), []).append(node)
    return found


def of_types(name, *types):
    return [node for one in types for node in nodes(name).get(one, [])]


@functools.cache
def imports(name, *, at_run_time=True):
    """The modules that a file imports anywhere in it; those for type checkers only if they are asked for as well."""
    found = set()
    ignored = {
        id(inner)
        for node in of_types(name, ast.If)
        if at_run_time and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in of_types(name, ast.Import, ast.ImportFrom):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{name}: imports are absolute"
            found |= {node.module or ""}
    return found


def roots(modules):
    return {module.split(".")[0] for module in modules}


#: Modules that say so in their opening words: they take the clock, the socket and the disk as arguments.
PURE_FILES = [name for name in FILES if re.search(r"Rules: pure\b|\bPure\b", ast.get_docstring(tree(name)) or "")]
#: Rooms where nothing else lives.
PURE_ROOMS = ("loader_server/planning/", "trainer_client/core/")


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith(PURE_ROOMS)])
def test_a_module_in_a_pure_room_says_that_it_is_pure(name):
    assert name in PURE_FILES


def test_what_decides_is_pure():
    """Whoever takes the word out of a module that decides has to take it out here as well."""
    deciding = ("coordinator/state", "wants/open_wants", "wants/tickets", "worker/membership")
    assert {f"loader_server/{name}.py" for name in deciding} <= set(PURE_FILES)
    assert {f"shared/wire/{name}.py" for name in ("bounds", "codec", "messages", "refusing")} <= set(PURE_FILES)


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


#: Rooms that say what samples are, and those that serve them.
DATA_ROOMS = tuple(f"loader_server/{room}/" for room in ("index", "planning", "sources", "transforms"))
SERVING_ROOMS = tuple(
    f"loader_server.{room}"
    for room in ("building", "commands", "coordinator", "feature_cache", "leases", "sharing", "wants", "worker")
)


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith(DATA_ROOMS)])
def test_what_samples_are_does_not_depend_on_who_serves_them(name):
    serving = [one for one in imports(name, at_run_time=False) if one.startswith(SERVING_ROOMS)]
    assert not serving


#: What starts training for users: the commands, the demo, and the public names, imported when they are first used.
STARTING = tuple(f"trainer_client/{name}.py" for name in ("__init__", "cli", "demo"))
FEED = [
    name
    for name in FILES
    if name.startswith("trainer_client/") and not name.startswith(("trainer_client/training/", *STARTING))
]


@pytest.mark.parametrize("name", FEED)
def test_the_feed_never_imports_training(name):
    """Nor the package itself, whose public names are training's too."""
    assert "trainer_client" not in imported_modules(name)
    assert "trainer_client.training" not in text(name)


@pytest.mark.parametrize("package", [*PACKAGES, "trainer_client.training"])
def test_rooms_import_each_other_one_way(package):
    """A room is a folder, or a module beside the folders."""
    depth = package.count(".") + 1
    edges = {
        (module.split(".")[depth], other.split(".")[depth])
        for module, name in MODULES.items()
        for other in imported_modules(name)
        if module.startswith(f"{package}.") and other.startswith(f"{package}.")
    }
    assert {(room, other) for room, other in edges if room < other and (other, room) in edges} == set()


@pytest.mark.parametrize("name", FILES)
def test_nothing_in_the_code_runs_what_it_reads(name):
    assert not roots(imports(name, at_run_time=False)) & RUNS_CODE
    for node in of_types(name, ast.Name):
        assert node.id not in ("eval", "exec", "compile"), f"{name}:{node.lineno}"
    for node in of_types(name, ast.Attribute):
        assert node.attr not in ("send_pyobj", "recv_pyobj", "unsafe_load"), f"{name}:{node.lineno}"
    for node in of_types(name, ast.keyword):
        if node.arg in ("allow_pickle", "shell"):
            assert isinstance(node.value, ast.Constant), f"{name}:{node.value.lineno}"
            assert node.value.value is False, f"{name}:{node.value.lineno}"


@pytest.mark.parametrize("name", FILES)
def test_only_what_people_read_is_timed_by_the_time_of_day(name):
    assert ("datetime" in roots(imports(name))) == (name in DATED), f"{name}: a clock that somebody may set"
    assert not re.search(r"\btime\.(time|gmtime|localtime)|\bfrom time import .*\btime", text(name))


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
    defined |= {node.id for node in of_types(name, ast.Name) if isinstance(node.ctx, ast.Store)}
    defined |= {alias.asname or alias.name for node in of_types(name, ast.ImportFrom) for alias in node.names}
    for names in listed:
        assert set(names) <= defined
        assert len(names) == len(set(names))


def test_each_folder_of_tests_is_a_package():
    """Two modules of one name, in folders that are none, end pytest's collection."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


# --- the public face ---


def test_the_public_names_of_the_packages():
    assert not hasattr(shared, "__all__")
    assert [name for name in vars(shared) if name.isupper()] == ["DISTRIBUTION"]
    assert loader_server.__all__ == ["open"]
    assert sorted(trainer_client.__all__) == sorted(TRAINER_CLIENT)
    assert sorted(loader_server.transforms.__all__) == sorted(TRANSFORMS)


def public(thing):
    return sorted(name for name in dir(thing) if not name.startswith("_"))


def test_the_public_names_of_a_feed_and_what_it_gives():
    assert public(Feed) == sorted(
        (
            *(
                "aggregate",
                "close",
                "computed",
                "dataset",
                "distributed",
                "epoch",
                "finish",
                "interrupt",
                "number",
                "open",
                "pipeline",
                "rank",
                "restore",
                "rounds_left",
            ),
            *("shapes", "state", "tag", "trained", "waited", "warm_up", "world"),
        )
    )
    assert public(Reading) == ["close", "rounds"]
    own = set(public(Batch)) - set(public(dict))
    assert own == {"built_by", "digest", "done", "empty", "epoch", "failed", "give_back", "masked", "number", "rows"}
    assert [name for name in public(Batch) if name in vars(dict)] == public(dict), "the rest is a dict's"


def test_the_public_attributes_of_a_feed_are_those_of_its_class():
    """What belongs to the session must not come back as an attribute of the instance."""
    feed = Feed(object())
    assert public(feed) == public(Feed)
    assert set(vars(feed)) == {"_session"}


def test_how_a_feed_is_opened_and_made_a_dataset():
    assert {name: one.default for name, one in inspect.signature(trainer_client.connect).parameters.items()} == {
        "endpoint": inspect.Parameter.empty,
        "stream": "train",
        "job": None,
        "rank": None,
        "replicas": 1,
        "world": None,
        "strategy": None,
        "work": None,
        "epochs": None,
        "elastic": None,
        "prefetch": None,
        "prefetch_bytes": 2**30,
        "shared_memory": True,
        "verify": False,
        "workers": 16,
        "keys": None,
        "connect_timeout_s": None,
        "lost_timeout_s": 60.0,
        "metrics_port": None,
        "metrics_targets": None,
        "metrics_listen": None,
        "metrics_token": None,
        "metrics_insecure": False,
    }
    form = ["inputs", "targets", "weights", "map"]
    for function, before in ((Feed.dataset, []), (Feed.distributed, ["strategy"]), (Feed.warm_up, ["step"])):
        parameters = inspect.signature(function).parameters
        assert list(parameters) == ["self", *before, *form]
        assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in form)
        assert all(parameters[name].default is None for name in form)


TRAINER_CLIENT = (
    "Batch",
    "ClosedError",
    "DataError",
    "EarlyStop",
    "EndedError",
    "Feed",
    "FeedCheckpoint",
    "InitialValues",
    "LevelledOff",
    "LostError",
    "NoProgress",
    "PeerError",
    "ProtocolError",
    "ReadError",
    "Reading",
    "RefusedError",
    "Role",
    "Run",
    "SampleError",
    "SettingsError",
    "StokerError",
    "Until",
    "Validation",
    "WorldChangedError",
    "Worsening",
    "cluster_resolver",
    "connect",
    "device_function",
    "distribute",
    "role",
    "run_elastic",
    "run_pipeline",
    "start_server",
)


#: What a module imports that holds a transform.
TRANSFORMS = (
    *("Outputs", "SampleError", "SettingsError", "setting", "transform"),
    *("Amount", "amount", "by_key", "byte_count", "choice", "duration_s", "file", "flag", "number", "numbers", "text"),
    "texts",
    "whole",
)


# --- the house ---

#: `shared` is one room.
MOST_ON_TOP = {"shared": 20, "loader_server": 12, "trainer_client": 12}


def functions():
    return [
        node.end_lineno - node.lineno + 1
        for name in FILES
        for node in of_types(name, ast.FunctionDef, ast.AsyncFunctionDef)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_few_modules_are_on_the_top_level_of_a_package(package):
    assert len(list((ROOT / package).glob("*.py"))) <= MOST_ON_TOP[package]


@pytest.mark.parametrize("name", FILES)
def test_a_module_can_be_read_in_one_sitting(name):
    assert len(text(name).splitlines()) <= 500


def test_functions_are_short():
    assert statistics.median(functions()) <= 7


def test_a_class_name_means_one_thing():
    """Private helpers of different modules too: what is called the same is looked for in the wrong place."""
    places = {}
    for name in FILES:
        for node in of_types(name, ast.ClassDef):
            places.setdefault(node.name.lstrip("_"), []).append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


#: What one format or another is about: the rest of the code has to do without.
OF_FORMATS = frozenset(("audio", "frames", "manifest", "manifests", "rate", "text", "transcript", "transcripts", "wav"))
#: What the index calls the file with the bytes of its strings, and what a path is read by.
BUT_FOR = (".text.npy", "read_text", "write_text")
FORMATLESS = (
    "loader_server/index/",
    "loader_server/job_file.py",
    "loader_server/stream.py",
    "loader_server/planning/",
)


def words_of(node, *, prose):
    """The words of an identifier, and of a text: of all that is said, or of a key alone."""
    names = [getattr(node, name, None) for name in ("id", "attr", "arg", "name")]
    if isinstance(node, ast.Constant) and (prose or " " not in str(node.value)):
        names.append(node.value)
    said = [one for one in names if isinstance(one, str) and one not in BUT_FOR]
    return {word for one in said for word in re.split(r"[^a-z]+", one.lower())}


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith(FORMATLESS)])
def test_only_sources_know_what_a_sample_holds(name):
    """The planner counts in units, frames among them, and its messages may give examples."""
    prose = not name.startswith("loader_server/planning/")
    refused = OF_FORMATS if prose else OF_FORMATS - {"frames"}
    for node in ast.walk(tree(name)):
        if words_of(node, prose=prose) & refused and not isinstance(node, ast.alias):
            assert ast.unparse(node) in ("text", "texts"), f"{name}:{getattr(node, 'lineno', '')}"


def imported_modules(name):
    """The project's own modules that a file imports, lazily and for type checkers too."""
    for node in of_types(name, ast.Import, ast.ImportFrom):
        if isinstance(node, ast.ImportFrom):
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            for module in [one for one in submodules if one in MODULES] or [node.module]:
                if module in MODULES:
                    yield module
        else:
            yield from (alias.name for alias in node.names if alias.name in MODULES)


def circles():
    """Groups of modules that import each other, directly or by way of others."""
    order = {module: set(imported_modules(name)) - {module} for module, name in MODULES.items()}
    while leaves := [module for module, needed in order.items() if not needed & order.keys()]:
        for module in leaves:
            del order[module]
    return {module: sorted(needed & order.keys()) for module, needed in order.items()}


def test_no_module_needs_itself():
    assert circles() == {}


# --- what an import costs, and whom it meets ---


def run(code, *, cwd=ROOT):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


def test_loaders_and_the_plain_feed_need_no_tensorflow():
    modules = [
        module_of(name) for name in FILES if name.startswith(("loader_server/", "shared/")) and "__main__" not in name
    ]
    modules += [
        "trainer_client",
        "trainer_client.feed",
        "trainer_client.training.evaluating.evaluate",
        "trainer_client.training.predicting.predict",
    ]
    code = (
        f"import importlib, sys\nfor name in {modules!r}:\n"
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
