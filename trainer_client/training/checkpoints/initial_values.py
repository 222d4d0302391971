"""Values with which a model begins when its run has no checkpoint yet: those of another run's checkpoint, or of a file.

Rules:
- A value goes to the variable of its name and shape, or nowhere. Whatever fits nothing, in the model or in the file, is
  refused; to load a part of both, name it.
- Only the model's variables are taken: the optimizer begins anew, and seeds of random layers stay the run's own.
- Names do not begin with the model's own name, so that two models of unlike names can share layers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import DataError, SettingsError
from trainer_client.network.trainer_log import process_log
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["InitialValues", "Matched", "Shapes", "match_values", "variable_names"]

#: How many variables a line or an error names.
_NAMED = 5
#: The last part of the name of a random layer's state.
_SEED = "seed_generator_state"
#: What Keras appends to the names of further layers of one kind.
_COUNTED = re.compile(r"_\d+(?=/|$)")
#: The member of our checkpoints that has their record.
_RECORD = "record"

#: Shapes of variables or values, by their names.
Shapes = Mapping[str, tuple[int, ...]]


# --- names, and what fits what (pure) ---


def variable_names(model: Any) -> list[str]:
    """Return a name for each of the model's variables, in order: its path without the model's own name.

    Of several variables of one path, further ones have their number behind it: `path (2)`.
    """
    paths = [variable.path.removeprefix(f"{model.name}/") for variable in model.variables]
    seen: Counter[str] = Counter()
    names = []
    for path in paths:
        seen[path] += 1
        names.append(path if seen[path] == 1 else f"{path} ({seen[path]})")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Which value each variable gets, by their names; which variables get none, and which values nobody does."""

    pairs: Mapping[str, str]
    kept: Sequence[str]
    unused: Sequence[str]

    def line(self, where: str) -> str:
        """Return the line that reports it: how many were loaded from where, and what was not, by at most five names."""
        whole = len(self.pairs) + len(self.kept)
        own = f"; own values: {_listed(self.kept)}" if self.kept else ""
        left = f"; not taken from there: {_listed(self.unused)}" if self.unused else ""
        return f"LOADED: {len(self.pairs)} of {whole} variables from {where}{own}{left}"


def match_values(variables: Shapes, values: Shapes, parts: Sequence[str], where: str) -> Matched:
    """Return which value each variable gets.

    Without `parts` all variables get a value, and all values are used; else all in a part. Names match if they are
    equal, or without parts if all are, in order, but for the numbers that Keras gives to layers. Seeds are left out.
    Raise DataError, which names `where`, for a variable without a value, a value without a variable, or another shape,
    and SettingsError for a part that has no variable.
    """
    variables = {name: shape for name, shape in variables.items() if not _is_seed(name)}
    values = {name: shape for name, shape in values.items() if not _is_seed(name)}
    for part in parts:
        if not any(_is_in(name, [part]) for name in variables):
            raise SettingsError(
                expected=f"parts of the model, such as {_listed(list(variables))}", got=part, where="initial values",
                remedy="Name a layer, or several by a pattern such as encoder*.",
            )  # fmt: skip
    wanted = [name for name in variables if not parts or _is_in(name, parts)]
    there = [name for name in values if not parts or _is_in(name, parts)]
    pairs = {name: name for name in wanted if name in values}
    if not parts and len(pairs) < len(wanted) and _are_renumbered(variables, values):
        pairs = dict(zip(variables, values, strict=True))
    _refuse_unfit(variables, values, (wanted, there, pairs), where)
    return Matched(
        pairs=pairs,
        kept=[name for name in variables if name not in pairs],
        unused=[name for name in values if name not in pairs.values()],
    )


def _is_seed(name: str) -> bool:
    return name.partition(" ")[0].rpartition("/")[2] == _SEED


def _is_in(name: str, parts: Sequence[str]) -> bool:
    """Return whether one of the parts, which may be patterns, is somewhere on the path of this name."""
    steps = name.split("/")
    for part in parts:
        patterns = part.strip("/").split("/")
        for at in range(len(steps) - len(patterns) + 1):
            if all(map(fnmatchcase, steps[at : at + len(patterns)], patterns)):
                return True
    return False


def _are_renumbered(variables: Shapes, values: Shapes) -> bool:
    """Return whether names are equal in order but for the numbers of layers, and shapes are equal."""
    return [(_COUNTED.sub("", name), shape) for name, shape in variables.items()] == [
        (_COUNTED.sub("", name), shape) for name, shape in values.items()
    ]


def _refuse_unfit(
    variables: Shapes, values: Shapes, found: tuple[list[str], list[str], dict[str, str]], where: str
) -> None:
    wanted, there, pairs = found
    missing = [name for name in wanted if name not in pairs]
    surplus = [name for name in there if name not in pairs.values()]
    odd = [
        f"{name} {list(values[value])} for {list(variables[name])}"
        for name, value in pairs.items()
        if values[value] != variables[name]
    ]
    problems = [
        *([f"no value for {_listed(missing)}"] if missing else []),
        *([f"other shapes: {_listed(odd)}"] if odd else []),
        *([f"values of no variable: {_listed(surplus)}"] if surplus else []),
    ]
    if problems:
        raise DataError(
            expected=f"a value for each of {len(wanted)} variables, and no others", got="; ".join(problems),
            where=where,
            remedy="To load a part of the model, name it behind the file: the layer encoder, or encoder*, for example.",
        )  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


# --- where values come from ---


class InitialValues:
    """Values with which a model begins, if its run has no checkpoint yet: those of an earlier run, or of a file.

    They go to variables of the same name and shape. What was loaded and what was not is printed, and in the log. The
    optimizer and the seeds of random layers begin anew.

    Args:
        path: A folder of checkpoints, of which the newest is read; one of these; a `.keras` file; or an `.npz` file of
            arrays by name, such as `encoder/dense/kernel`.
        parts: Layers, or patterns such as `block_*`, to load and no others. Without parts, whatever does not fit is
            refused.
        model: The model, for a `Run`, which has none itself.

    Raises:
        SettingsError: There is no such file or folder, or it is of another kind.

    Example:
        >>> checkpoint = trainer_client.FeedCheckpoint(feed, folder)
        >>> data = feed.dataset(inputs="audio", targets="audio_length", weights="weight")
        >>> history = model.fit(data, epochs=1, callbacks=[checkpoint], verbose=0)
        >>> first = trainer_client.InitialValues(folder, model=model)
        >>> run = trainer_client.Run(feed, trainer_client.Until(epochs=2), initial=first)
        >>> for batch in run:
        ...     run.stop("enough for today")
        LOADED: ... variables from ...
        STARTING: ...
        FINISHED: ... enough for today
    """

    def __init__(self, path: str | Path, *, parts: Sequence[str] = (), model: Any = None) -> None:
        self._path, self._parts, self._model = Path(path), tuple(parts), model
        self._refuse_other_kinds()

    def _refuse_other_kinds(self) -> None:
        path = self._path
        is_exported = (path / "saved_model.pb").exists()
        if path.exists() and not is_exported and (path.is_dir() or path.suffix in (".npz", ".keras")):
            return
        got = "nothing" if not path.exists() else "a SavedModel, whose variables have no names" if is_exported else ""
        raise SettingsError(
            expected="a folder of checkpoints, or a file that ends in .npz or .keras",
            got=got or f"a file that ends in {path.suffix or 'nothing'}", where=f"initial values, {path}",
            remedy="Name the checkpoints of an earlier run, or what it has exported: --export model.keras.",
        )  # fmt: skip

    def __call__(self, model: Any = None, *, prints: bool = True) -> None:
        """Give the model its values; log what was loaded and what was not, and print it too, unless told not to.

        The model is the one that was given when this was made, unless another is given here. An OSError of a folder
        that cannot be read passes through.

        Raises:
            SettingsError: There is no model, it is not built, or it lacks one of the parts.
            DataError: What the file has does not fit the model, or the file cannot be read. No variable has changed.
        """
        model = self._model if model is None else model
        if model is None or not model.built:
            raise SettingsError(
                expected="a model that has its variables", got="none" if model is None else "one that was never called",
                where="initial values",
                remedy="Pass model= to InitialValues, and call the model once on a batch before, or build it.",
            )  # fmt: skip
        where, values = self._read()
        names = variable_names(model)
        variables = {name: tuple(variable.shape) for name, variable in zip(names, model.variables, strict=True)}
        matched = match_values(variables, {name: value.shape for name, value in values.items()}, self._parts, where)
        for name, variable in zip(names, model.variables, strict=True):
            if name in matched.pairs:
                variable.assign(values[matched.pairs[name]])
        process_log().info(
            "initial values are loaded", file=where, loaded=list(matched.pairs), kept=list(matched.kept),
            unused=list(matched.unused),
        )  # fmt: skip
        if prints:
            print(matched.line(where), flush=True)

    def _read(self) -> tuple[str, dict[str, NDArray[np.generic]]]:
        """Return the path of the file that was read, and its values by name.

        Raise DataError if the file cannot be read, names no variables or is not there, and OSError if a folder cannot
        be read.
        """
        path = self._path
        if path.is_dir():
            found = CheckpointFolder(path, 1).read_newest_whole()
            if found is None:
                raise _unusable(path, "a folder without any")
            name, arrays, record = found
            return str(path / name), _named(path / name, arrays, record)
        if path.suffix == ".keras":
            return str(path), _values_of_model(path)
        return str(path), _values_of_arrays(path)


def _unusable(path: Path, got: str) -> DataError:
    return DataError(
        expected="a checkpoint that names its variables", got=got, where=f"initial values, {path}",
        remedy="Name the checkpoints of another run, written by this release.",
    )  # fmt: skip


def _named(path: Path, arrays: Mapping[str, NDArray[np.generic]], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the model's variables in a checkpoint, by name; raise DataError if it has no names."""
    names = record.get("names")
    if names is None:
        raise _unusable(path, "one without names, of an earlier release")
    return {name: arrays[str(at)] for at, name in enumerate(names)}


def _values_of_arrays(path: Path) -> dict[str, Any]:
    """Return the values of a checkpoint's model, or the arrays of any other .npz file, by name.

    Raise DataError if the file cannot be read, or is a checkpoint that does not name its variables.
    """
    try:
        with np.load(path, allow_pickle=False) as members:
            if _RECORD not in members.files:
                return {name: members[name] for name in members.files}
    except Exception as error:  # a damaged archive can raise nearly anything
        raise _unusable(path, f"a file that cannot be read ({error})") from error
    folder = CheckpointFolder(path.parent, 1)
    return _named(path, *folder.read(path.name, otherwise="take another one"))


def _values_of_model(path: Path) -> dict[str, Any]:
    """Return the variables of an exported model, by name; raise DataError if it cannot be made."""
    import keras

    try:
        model = keras.saving.load_model(path, compile=False)
    except Exception as error:  # loading runs the user's own layers, which may raise anything
        raise _unusable(path, f"a model that cannot be made ({error})") from error
    return dict(zip(variable_names(model), [np.asarray(value.numpy()) for value in model.variables], strict=True))
