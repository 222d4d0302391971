"""A user's module with the pieces of a run (model, loss, metrics, keys of its data), and the order to run it on a job.

Rules: a piece is found under its usual name, or under a name that the user gave instead, `module:name`. A function gets
the parameters that it takes; a parameter that no function takes is an error. A missing piece is reported with an
example. It must not know TensorFlow, nor what the pieces are used for.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import Self

from shared.errors import SettingsError
from shared.hashing import digest64
from shared.settings.parsers import nearest
from trainer_client.arguments import find_repeated, refuse_usage
from trainer_client.connecting import connect

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from trainer_client.feed import Feed

__all__ = ["EXAMPLES", "JobOrder", "ModelModule"]

#: The pieces, each with an example.
EXAMPLES = {
    "model": "def model(units=64):\n    return keras.Sequential([keras.layers.Dense(units), keras.layers.Dense(10)])",
    "loss": "loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
    "optimizer": "def optimizer(rate=1e-3):\n    return keras.optimizers.Adam(rate, clipnorm=1.0)",
    "callbacks": "def callbacks():\n    return [trainer_client.EarlyStop(trainer_client.NoProgress(3))]",
    "eval_metrics": 'def eval_metrics():\n    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]',
    "feed_keys": 'feed_keys = {"inputs": "features", "targets": "label", "weights": "weight"}',
    "dataset_pipeline": (
        "def dataset_pipeline(context):\n    return context.map_producer_to_consumer(context.base_dataset)"
    ),
    "prediction_processor": 'def prediction_processor(rows):\n    print(rows["tag"], rows["output"])',
}


class ModelModule:
    """The pieces of one module, or of others that `names` has, with the parameters for their functions."""

    def __init__(self, name: str, parameters: Mapping[str, Any], names: Mapping[str, str]) -> None:
        module, _, model = name.partition(":")
        self.name = module
        self.parameters = parameters
        self._names = {piece: other_name for piece, other_name in names.items() if other_name}
        if model:
            self._names.setdefault("model", name)
        #: The parameters that any function takes that was called.
        self._known: set[str] = set()

    @property
    def full_name(self) -> str:
        """Full name of the model, in the form that users write: `module:model`."""
        return self._names.get("model", f"{self.name}:model")

    def digest(self) -> str:
        """Return a hash of the module's source, to recognise a changed module; its imports are not covered.

        It is empty for a module without a file. Raise SettingsError if the module cannot be imported.
        """
        path = _imported(self.name).__file__
        return f"{digest64(Path(path).read_bytes()):016x}" if path is not None else ""

    def version(self, pieces: Sequence[str]) -> str:
        """Return a hash of what results depend on here: source, names of these pieces, and parameters.

        Raise SettingsError if the module cannot be imported.
        """
        names = [self._names.get(piece, piece) for piece in pieces]
        basis = json.dumps([self.full_name, self.digest(), names, self.parameters], sort_keys=True)
        return f"{digest64(basis.encode()):016x}"

    def find(self, piece: str) -> Any:
        """Return the piece as the module has it; None if there is none.

        Raise SettingsError if the module cannot be imported, or if the user named the piece and it is not there.
        """
        place, _, attribute = self._names.get(piece, f"{self.name}:{piece}").rpartition(":")
        module = _imported(place or self.name)
        value = getattr(module, attribute, None)
        if value is None and piece in self._names:
            raise self._missing(piece, f"{attribute} in {module.__name__}", nearest(attribute, dir(module)))
        return value

    def require(self, piece: str) -> Any:
        """Return the piece as the module has it; raise SettingsError, with an example, if there is none.

        Raise SettingsError too if the module cannot be imported.
        """
        value = self.find(piece)
        if value is None:
            raise self._missing(piece, f"{piece} in {self.name}", nearest(piece, dir(_imported(self.name))))
        return value

    def feed_keys(self) -> dict[str, Any]:
        """Return the roles of a batch's keys, as arguments of `feed.dataset`.

        Raise SettingsError if the module cannot be imported or has none, or if they are no dict of known roles.
        """
        keys = self.require("feed_keys")
        if not isinstance(keys, dict) or not keys.keys() <= {"inputs", "targets", "weights", "map"}:
            got = ", ".join(map(str, keys)) if isinstance(keys, dict) else f"a {type(keys).__name__}"
            raise SettingsError(
                expected="feed_keys, a dict with some of inputs, targets, weights and map", got=got, where=self.name,
                remedy=f"Write, for example:\n{EXAMPLES['feed_keys']}",
            )  # fmt: skip
        return keys

    def make(self, piece: str) -> Any:
        """Return what the piece's function returns, called with its parameters.

        Raise SettingsError if there is no such piece, if it is no function, or if the module cannot be imported. Errors
        of the function are passed on.
        """
        self.require(piece)
        return self._call(piece)

    def make_if_there(self, piece: str) -> Any:
        """Return the same as `make`, or None if there is no such piece.

        Raise SettingsError if it is no function, if the user named it and it is not there, or if the module cannot be
        imported. Errors of the function are passed on.
        """
        return None if self.find(piece) is None else self._call(piece)

    def find_function(self, piece: str) -> Callable[..., Any] | None:
        """Return the piece as a function, to be called later with arguments of ours; None if there is none.

        Raise SettingsError if it is no function, if the user named it and it is not there, or if the module cannot be
        imported.
        """
        function = self.find(piece)
        if function is not None and not callable(function):
            raise SettingsError(
                expected=f"{piece}, a function", got=f"a {type(function).__name__}", where=self.name,
                remedy=f"Write, for example:\n{EXAMPLES[piece]}",
            )  # fmt: skip
        return cast("Callable[..., Any] | None", function)

    def _call(self, piece: str) -> Any:
        function = self.find_function(piece)
        assert function is not None
        taken = inspect.signature(function).parameters
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
            self._known |= self.parameters.keys()
            return function(**self.parameters)
        self._known |= taken.keys()
        return function(**{name: value for name, value in self.parameters.items() if name in taken})

    def refuse_unknown_parameters(self) -> None:
        """Raise SettingsError for a parameter that no function took; call this once all pieces are made."""
        for name in self.parameters:
            if name not in self._known:
                known = ", ".join(sorted(self._known)) or "none"
                raise SettingsError(
                    expected=f"a parameter of its functions ({known})" + nearest(name, self._known), got=f'"{name}"',
                    where="--param", remedy=f"Mend its name, or give a function of {self.name} this parameter.",
                )  # fmt: skip

    def _missing(self, piece: str, what: str, near: str) -> SettingsError:
        return SettingsError(
            expected=f"{what}{near}", got="nothing of that name", where="--model",
            remedy=f"Write, for example:\n{EXAMPLES[piece]}",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrder:
    """The arguments that commands on a running job share: the user's module, and how to reach the job."""

    module: ModelModule
    endpoint: str
    #: A folder of keys; empty: none.
    keys: str
    #: How long to wait for the coordinator, and for parameter servers.
    connect_timeout_s: float

    @classmethod
    def of(cls, options: argparse.Namespace, names: Mapping[str, str], **more: Any) -> Self:
        """Return the order that a command line gives; `names` are other names of the module's pieces.

        End the process with exit code 2 if a parameter of the module is given twice. From then on modules of the
        current folder are found, before others.
        """
        refuse_usage(options, find_repeated("--param", [name for name, _ in options.param]))
        sys.path.insert(0, "")  # the user's modules are in the current folder
        return cls(
            module=ModelModule(options.model, dict(options.param), names),
            endpoint=options.feed,
            keys=options.keys,
            connect_timeout_s=options.timeout_seconds,
            **more,
        )

    def connect(self, stream: str, **how: Any) -> Feed:
        """Connect to a stream of the job; `how` are further arguments of `connect`, which raises the same errors.

        StokerError of `connect` passes through.
        """
        return connect(self.endpoint, stream=stream, keys=self.keys, connect_timeout_s=self.connect_timeout_s, **how)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise SettingsError(
            expected=f'the module "{name}" to be importable', got=f"{type(error).__name__}: {error}", where="--model",
            remedy="Name it as an import does, without .py, and start in the folder that holds it.",
        ) from error  # fmt: skip
