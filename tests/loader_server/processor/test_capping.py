"""Processes that execute themselves again to keep to a level, and what is refused."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from loader_server.job_file import JobFile
from loader_server.processor import capping
from loader_server.processor.capping import keep_to, refuse_unfit
from loader_server.processor.levels import LEVELS, MARK, environment_of, level_in
from shared.errors import SettingsError
from shared.memory import boot_id
from tests.support.forked import ROOT
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

V2, V3 = "x86-64-v2", "x86-64-v3"
SETTING = "job.toml, [job], processor"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="levels are those of x86-64")

#: Prints a line at each start, and what the libraries do at last.
PROGRAM = """
import json, os, sys
from loader_server.processor import capping
print(json.dumps({"pid": os.getpid(), "words": sys.argv[1:]}), flush=True)
capping.keep_to(sys.argv[1], "here", capping.execute_again)
import numpy._core._multiarray_umath as numpy_loops
print(json.dumps({"core": capping._openblas_core(), "loops": [
    name for name in numpy_loops.__cpu_dispatch__ if numpy_loops.__cpu_features__[name]]}))
if sys.argv[2:]:
    capping.refuse_unfit(sys.argv[2], "here")
"""


def usual(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("OPENBLAS_CORETYPE", MARK)}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def run(*words: str, environment: Mapping[str, str] | None = None) -> tuple[list[dict[str, Any]], str]:
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, env=environment or usual(), capture_output=True, text=True, check=False, timeout=100)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def limited(level: str, machine: str | None = None) -> dict[str, str]:
    import numpy._core._multiarray_umath as numpy_loops

    return environment_of(level, numpy_loops.__cpu_dispatch__, usual(), boot_id() if machine is None else machine)


def test_a_process_executes_itself_once_and_its_libraries_keep_to_the_level() -> None:
    (first, second, libraries), complained = run(V2, V2)
    assert first == second, "the same process, with the same arguments"
    assert first["words"] == [V2, V2]
    assert libraries == {"core": "Nehalem", "loops": []}
    assert complained == ""


def test_a_process_that_keeps_to_the_level_goes_on() -> None:
    lines, complained = run(V2, V2, environment=limited(V2))
    assert len(lines) == 2
    assert complained == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_process_with_closed_streams_executes_itself_too(closed: str, tmp_path: Path) -> None:
    program = "import sys, pathlib; from loader_server.processor import capping\n"
    program += f"capping.keep_to('{V2}', 'here', capping.execute_again)\n"
    program += "pathlib.Path(sys.argv[1]).write_text('there')"
    shell = f'exec "$0" -c "$1" "$2" {closed}'
    path = tmp_path / "end"
    subprocess.run(["sh", "-c", shell, sys.executable, program, str(path)], env=usual(), check=True, timeout=100)
    assert path.read_text() == "there"


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "SOXR_USE_SIMD64", "SOXR_USE_SIMD32", "DNNL_MAX_CPU_ISA"])
def test_limits_that_were_changed_afterwards_are_refused(name: str) -> None:
    _, complained = run(V2, V2, environment={**limited(V2), name: "1"})
    assert f"one where {name} was changed afterwards" in complained
    assert f"Unset {MARK}" in complained


def test_from_level_to_level_it_goes_by_way_of_none() -> None:
    lines, complained = run(V2, V2, environment=limited(V3))
    assert len(lines) == 4
    assert lines[-1] == {"core": "Nehalem", "loops": []}
    assert complained == ""


def test_limits_that_come_from_another_machine_are_made_anew() -> None:
    """The processor there may have had the level; whether this one has it is only seen without limits."""
    lines, complained = run(V2, V2, environment=limited(V2, "another"))
    assert len(lines) == 4
    assert lines[-1] == {"core": "Nehalem", "loops": []}
    assert complained == ""


def test_an_interpreter_that_loses_its_environment_is_executed_twice_and_refused(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec env -i PYTHONPATH={ROOT} {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    program = "import sys; sys.executable = sys.argv[2]\n" + PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", program, V2, str(wrapper)],
        env=usual(), capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 3, done.stdout
    assert f"got {wrapper}, which has lost it twice" in done.stderr


def test_without_a_level_the_limits_of_another_job_are_taken_back() -> None:
    lines, _ = run("", environment=limited(V2))
    assert len(lines) == 3
    assert lines[-1]["core"] != "Nehalem"


def test_nothing_happens_without_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARK, raising=False)
    keep_to("", SETTING, pytest.fail)


@pytest.mark.parametrize(
    ("environment", "got"),
    [
        ({"OPENBLAS_CORETYPE": "Prescott"}, "kernels for Nehalem, got one with those for "),
        ({"NPY_DISABLE_CPU_FEATURES": ""}, ", which uses "),
    ],
)
def test_libraries_that_do_not_heed_the_level_are_refused(environment: dict[str, str], got: str) -> None:
    _, complained = run(V2, V2, environment={**limited(V2), **environment})
    assert "SettingsError" in complained
    assert got in complained
    assert "Install numpy from PyPI" in complained


def test_a_process_with_another_level_or_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARK, raising=False)
    with pytest.raises(SettingsError, match="expected a process whose libraries keep to x86-64-v2, got one that keeps"):
        refuse_unfit(V2, SETTING)
    monkeypatch.setenv(MARK, environment_of(V3, (), {}, boot_id())[MARK])
    assert level_in(os.environ) == V3
    with pytest.raises(SettingsError, match=r"got one that keeps to x86-64-v3\. "):
        refuse_unfit(V2, SETTING)
    monkeypatch.setenv(MARK, environment_of(V2, (), {}, "another")[MARK])
    with pytest.raises(SettingsError, match="got one that keeps to x86-64-v2 on another machine"):
        refuse_unfit(V2, SETTING)


def test_a_machine_below_the_level_is_refused_by_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARK, raising=False)
    features = dict.fromkeys(LEVELS[V3].features, True) | {"AVX2": False}
    monkeypatch.setattr(capping, "_numpy", lambda: SimpleNamespace(__cpu_features__=features))
    for refuse in (partial(refuse_unfit, V3, SETTING), partial(keep_to, V3, SETTING, pytest.fail)):
        with pytest.raises(SettingsError, match="of level x86-64-v3 or above, got one without AVX2"):
            refuse()


def test_another_machine_is_refused_and_not_executed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    keep_to(V3, SETTING, pytest.fail)
    with pytest.raises(
        SettingsError, match="expected an x86-64 machine, as batches are built for x86-64-v3, got aarch"
    ):
        refuse_unfit(V3, SETTING)


def test_a_job_file_is_opened_only_by_a_process_that_keeps_to_its_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MARK, raising=False)
    path = write_job(tmp_path, samples=2, job=f'processor = "{V2}"')
    with pytest.raises(SettingsError, match=r"job\.toml, \[job\], processor"):
        JobFile(path)


def test_a_command_that_is_a_part_of_another_program_does_not_execute_that_program_again(tmp_path: Path) -> None:
    path = write_job(tmp_path, samples=2, job=f'processor = "{V2}"')
    program = (
        "import sys; from loader_server.cli import main\nprint('starts', flush=True)\nmain(['index', sys.argv[1]])"
    )
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, env=usual(), capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout == "starts\n", "it starts once"
    assert done.returncode == 1
    assert f"expected a process whose libraries keep to {V2}" in done.stderr


def test_an_unknown_level_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    path = write_job(tmp_path, samples=2, job='processor = "x86-64-v5"')
    with pytest.raises(SettingsError, match=r"x86-64-v2.*x86-64-v3.*x86-64-v4"):
        JobFile(path)
