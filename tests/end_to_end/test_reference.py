"""The reference of the public names: complete, and each of its examples runs against real jobs."""

from __future__ import annotations

import doctest
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from tests.support.loaders import Loaders, running, write_job
from tests.support.reserved_host import reserved_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MORE_STREAMS = """
[streams.leased]
like = "train"
evaluation = false
mode = "queue"

[streams.elastic]
like = "train"
evaluation = false
"""
PIPELINES = """
[job]
name = "numbers"
listen = "tcp://127.0.0.1:*"
accept_graphs = true

[streams.train]
source = "pipeline"
pipeline = "my_pipeline:dataset_pipeline"

[streams.sent]
source = "graph"
"""
NUMBERS = """
import tensorflow as tf


def dataset_pipeline(context):
    data = tf.data.Dataset.range(20).shard(context.shards, context.shard).batch(4).map(lambda x: {"x": x})
    return context.map_producer_to_consumer(data)
"""
#: Of these each member has an example of its own; of the others the class has one for all.
WITH_EXAMPLES = ("Feed", "Batch", "Reading", "Run")
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example):$", re.MULTILINE)

#: Public modules beside the package, each with the package that it needs.
MODULES = {
    "training.losses": "tensorflow",
    "layers": "tensorflow",
    "torch": "torch",
    "jax": "jax",
}


def public() -> dict[str, Any]:
    """Return all public names, those of a module with its name before them; without the modules that lack a package."""
    found = {name: getattr(trainer_client, name) for name in trainer_client.__all__}
    for name, package in MODULES.items():
        if importlib.util.find_spec(package) is not None:
            module = importlib.import_module(f"trainer_client.{name}")
            found |= {f"{name.rpartition('.')[2]}.{own}": getattr(module, own) for own in module.__all__}
    return found


PUBLIC = public()
ERRORS = {name for name, value in PUBLIC.items() if isinstance(value, type) and issubclass(value, Exception)}


def members(kind: type) -> dict[str, Any]:
    """Return the public methods and properties that a class defines, but for the hooks that Keras calls."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith(("_", "on_")) and (inspect.isfunction(value) or isinstance(value, property))
    }


def documented() -> dict[str, Any]:
    """Return all that the reference has to explain, by its full name."""
    found = {}
    for name, value in PUBLIC.items():
        if name in ERRORS:
            continue
        found[name] = value
        if isinstance(value, type):
            found |= {f"{name}.{member}": own for member, own in members(value).items()}
    return found


def sections(docstring: str) -> dict[str, str]:
    """Return the parts of a docstring by their heading; what comes first has none."""
    first, *rest = SECTION.split(docstring)
    return {"": first, **dict(zip(rest[::2], rest[1::2], strict=True))}


def parameters(value: Any) -> list[str]:
    """Return the names of the parameters that a caller gives."""
    return [name for name in inspect.signature(value).parameters if name != "self"]


DOCUMENTED = documented()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_each_public_name_is_explained(name: str) -> None:
    value = DOCUMENTED[name]
    parts = sections(inspect.getdoc(value) or "")
    assert parts[""].strip(), "it has a summary"
    is_made_by_users = inspect.isfunction(value) or name not in ("Feed", "Batch", "Reading")
    given = [] if isinstance(value, property) or not is_made_by_users else parameters(value)
    explained = re.findall(r"^    \**(\w+): \S", parts.get("Args", ""), re.MULTILINE)
    assert explained == given, "each parameter is explained, in order"
    returns = inspect.isfunction(value) and inspect.signature(value).return_annotation not in ("None", None)
    assert ("Returns" in parts) or not returns, "what comes back is explained"
    raised = re.findall(r"^    (\w+): ", parts.get("Raises", ""), re.MULTILINE)
    assert {*raised} <= ERRORS, "what is raised can be imported from here"
    if name in PUBLIC or name.split(".", maxsplit=1)[0] in WITH_EXAMPLES:
        assert ">>> " in parts.get("Example", ""), "it has an example"


@pytest.mark.parametrize("name", [name for name, value in DOCUMENTED.items() if inspect.isfunction(value)])
def test_not_given_is_none(name: str) -> None:
    defaults = {one.name: one.default for one in inspect.signature(DOCUMENTED[name]).parameters.values()}
    assert [one for one, default in defaults.items() if isinstance(default, str) and not default] == []


# --- the examples ---


def examples() -> list[doctest.DocTest]:
    """Return the examples of all public names, each as it stands in the source."""
    finder = doctest.DocTestFinder()
    found: list[doctest.DocTest] = []
    for name, value in PUBLIC.items():
        found += finder.find(value, name, module=sys.modules[value.__module__], globs={})
    return [example for example in found if example.examples]


EXAMPLES = {example.name: example for example in examples()}


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    folder = tmp_path_factory.mktemp("reference")
    job = write_job(folder, samples=40, longest_s=0.5, budget="2 s")
    with job.open("a") as file:
        file.write(MORE_STREAMS)
    with running(job, workers=1) as both:
        yield both


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    folder = tmp_path_factory.mktemp("pipelines")
    (folder / "job.toml").write_text(PIPELINES)
    (folder / "my_pipeline.py").write_text(NUMBERS)
    with running(folder / "job.toml", workers=1, tensorflow=True) as both:
        yield both


def compiled_model() -> Any:
    import keras

    model = keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def given(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], dict[str, Any]]]:
    """What the page says that an example finds: made for those that name it."""
    with reserved_host() as host:
        feeds: list[trainer_client.Feed] = []

        def connected(stream: str) -> trainer_client.Feed:
            feeds.append(trainer_client.connect(request.getfixturevalue("loaders").endpoint, stream=stream))
            feeds[-1]._session.cursor.rewind()  # examples before this one have trained on the stream
            return feeds[-1]

        def my_pipeline() -> Any:
            """Other tests of this process may have imported a module of this name."""
            folder = request.getfixturevalue("pipelines").log.parent
            spec = importlib.util.spec_from_file_location("my_pipeline", folder / "my_pipeline.py")
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module

        makers = {
            "endpoint": lambda: request.getfixturevalue("loaders").endpoint,
            "pipelines": lambda: request.getfixturevalue("pipelines").endpoint,
            "my_pipeline": my_pipeline,
            "feed": functools.partial(connected, "train"),
            "dev": functools.partial(connected, "dev"),
            "model": compiled_model,
            "folder": lambda: tmp_path / "checkpoints",
            "free_host": lambda: host,
        }

        def make(source: str) -> dict[str, Any]:
            words = {*re.findall(r"\w+", source)}
            return {"trainer_client": trainer_client} | {name: makers[name]() for name in makers if name in words}

        yield make
        for feed in feeds:
            feed.close()


#: These wait for a process that imports TensorFlow, or for a world to come about.
SLOW = ("Feed.pipeline", "distribute", "run_elastic")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in EXAMPLES]
)
def test_each_example_runs_as_it_is_shown(name: str, given: Callable[[str], dict[str, Any]]) -> None:
    example = EXAMPLES[name]
    example.globs = given("".join(one.source for one in example.examples))
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(example, out=said.append)
    assert result.failed == 0, "".join(said)
    assert result.attempted > 0


def test_the_page_has_every_public_name_and_needs_no_network(tmp_path: Path) -> None:
    pytest.importorskip("pdoc", reason="pip install -e '.[docs]'")
    from tests.support.reference import write_reference

    assert "trainer_client" in write_reference(tmp_path)
    page = (tmp_path / "trainer_client.html").read_text("utf-8")
    assert [name for name in trainer_client.__all__ if f'id="{name}"' not in page] == []
    assert re.findall(r'(?:src="|@import |url\(")https?:[^"]*', page) == []
    assert page.index('id="connect"') < page.index('id="Feed"') < page.index('id="Batch"')
    assert 'id="FeedCheckpoint.on_epoch_end"' not in page
