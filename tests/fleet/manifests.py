"""The manifests in `deploy/kubernetes`, and the pods in them.

They are read as they are written, which needs nothing, or as kubectl renders them. Reading follows `resources` and
leaves out what a patch deletes; it knows no generators and no other patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from tests.support.forked import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["KUBERNETES", "OVERLAYS", "Pod", "find", "option", "options", "pods", "read_written"]

KUBERNETES = ROOT / "deploy" / "kubernetes"
#: What `kubectl apply -k` is given: these folders below it.
OVERLAYS = ("namespace", ".", "base", "scaled", "jobset", "trainer")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that a document makes."""

    #: The kind of the document.
    made_by: str
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]

    @property
    def component(self) -> str:
        """Return what it is: coordinator, worker or trainer."""
        name: str = self.metadata["labels"]["app.kubernetes.io/component"]
        return name

    @property
    def container(self) -> Mapping[str, Any]:
        """Return its main container."""
        (container,) = self.spec["containers"]
        found: Mapping[str, Any] = container
        return found

    @property
    def containers(self) -> list[Mapping[str, Any]]:
        """Return all of its containers, those that run first included."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def ports(self) -> dict[str, int]:
        """Return its ports by name."""
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", ())}

    def is_selected(self, selector: Mapping[str, Any]) -> bool:
        """Return whether it has all labels of a selector's `matchLabels`."""
        return selector["matchLabels"].items() <= self.metadata["labels"].items()


def read_written(folder: Path) -> list[Document]:
    """Return the documents of a folder with a `kustomization.yaml`, as they are written."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    documents: list[Document] = []
    for name in kustomization["resources"]:
        path = folder / name
        documents += read_written(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    targets = [patch["target"] for patch in kustomization.get("patches", ()) if "$patch: delete" in patch["patch"]]
    deleted = {(target["kind"], target["name"]) for target in targets}
    return [document for document in documents if (document["kind"], document["metadata"]["name"]) not in deleted]


def find(documents: Iterable[Document], kind: str, name: str) -> Document:
    """Return the only document of this kind and name."""
    (found,) = (document for document in documents if (document["kind"], document["metadata"]["name"]) == (kind, name))
    return found


def pods(documents: Iterable[Document]) -> Iterator[Pod]:
    """Yield the pods that documents make, whatever their kinds."""
    for document in documents:
        spec = document.get("spec", {})
        templates = [job["template"]["spec"]["template"] for job in spec.get("replicatedJobs", ())]
        for template in [spec["template"]] if "template" in spec else templates:
            yield Pod(document["kind"], template["metadata"], template["spec"])


def options(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a container's command, by name, those without a value with an empty one."""
    parts = (word.partition("=") for word in container["args"] if word.startswith("--"))
    return {name: value for name, _, value in parts}


def option(container: Mapping[str, Any], name: str) -> str:
    """Return the value of an option; raise KeyError if it is not given."""
    return options(container)[name]
