"""Native code that no limit of a level reaches."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, field
from typing import Any

import pytest

from loader_server.installed import has_native_code, required_by
from loader_server.processor.native_code import native_names, warn_of_unproved_code
from loader_server.transforms.declare import declaration_of
from loader_server.transforms.find import built_ins


@pytest.mark.parametrize(
    ("package", "native"),
    [("numpy", True), ("soxr", True), ("msgpack", True), ("pyzmq", True), ("rich", False), ("pytest", False)],
)
def test_native_packages_are_known_by_their_files(package: str, *, native: bool) -> None:
    assert has_native_code(package) == native


def test_a_package_that_is_not_installed_is_importlibs_error() -> None:
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        has_native_code("nowhere")


def test_what_the_limits_reach_and_what_is_python_does_not_count() -> None:
    assert native_names(["soxr", "numpy", "rich"], ()) == []
    assert native_names(["pyzmq", "numpy", "msgpack"], ("own.loops",)) == ["msgpack", "own.loops", "pyzmq"]


def test_a_package_of_python_counts_by_the_native_code_that_it_requires(monkeypatch: pytest.MonkeyPatch) -> None:
    required = {"librosa": ["numba", "scipy", "numpy", "pooch"], "pooch": ["librosa"]}
    monkeypatch.setattr("loader_server.processor.native_code.required_by", lambda name: required.get(name, []))
    monkeypatch.setattr(
        "loader_server.processor.native_code.has_native_code", lambda name: name in ("numba", "scipy", "numpy")
    )
    assert native_names(["librosa"], ()) == ["numba", "scipy"]


def test_requirements_are_installed_packages_without_those_of_extras() -> None:
    assert {"numpy", "msgpack", "pyzmq"} <= set(required_by("stoker"))
    assert "ray" not in required_by("stoker")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        required_by("nowhere")


def test_built_in_transforms_with_other_native_packages_declare_that_these_are_safe() -> None:
    """Those of sound use numpy and soxr alone, which limits reach."""
    declared = {name: declaration_of(target) for name, target in built_ins().items()}
    native = {name for name, declaration in declared.items() if native_names(declaration.packages, ())}
    assert native == {"sentencepiece", "tokenizers", "resize_image", "random_resized_crop"}
    assert {name for name, declaration in declared.items() if declaration.processor_safe} == native


@dataclass
class Kept:
    """A log that keeps what is logged."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


def test_each_user_of_native_code_is_named_once() -> None:
    log = Kept()
    warn_of_unproved_code({}, log)  # type: ignore[arg-type]
    assert log.lines == []
    warn_of_unproved_code({"a:f": ["torch"], "the source of stream train": ["scipy", "x.y"]}, log)  # type: ignore[arg-type]
    assert [(line["used_by"], line["code"]) for line in log.lines] == [
        ("a:f", "torch"),
        ("the source of stream train", "scipy, x.y"),
    ]
    assert all("processor_safe=True" in line["event"] for line in log.lines)
