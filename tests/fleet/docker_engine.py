"""A Docker Engine of our own for the length of a block, with an image of ours and a network that this host is part of.

`dockerd` runs in a PID namespace and a mount namespace of its own, with a `/run` of its own that has all of its files
in memory: half a gigabyte for the loader's image, several for the trainer's. So whatever becomes of it, or of us, no
process, mount, socket or image is left; only the bridge and the control group lie outside, and `close` removes them.
There is no registry: the base image comes from Debian by `debootstrap`, and is kept in the folder that
STOKER_FLEET_CACHE names (`~/.cache/stoker-fleet`). Builds have no network: their wheels are downloaded before.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from packaging.requirements import Requirement

from tests.support.forked import ROOT
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

__all__ = ["DockerEngine", "installed_requirements", "missing_programs"]

#: Which Debian package brings each program that is needed.
_PACKAGES = {
    "debootstrap": "debootstrap", "docker": "docker.io", "dockerd": "docker.io", "ip": "iproute2",
    "iptables": "iptables", "setpriv": "util-linux", "tini": "tini", "unshare": "util-linux",
}  # fmt: skip

_SUITE, _PYTHON = "bookworm", "3.11"
_BASE_PACKAGES = "python3,python3-venv,tini"
#: What an image has no use for, by `tar --exclude`.
_LEFT_OUT = (
    "./var/cache/apt/archives/*.deb",
    "./var/lib/apt/lists/*",
    "./usr/share/doc/*",
    "./usr/share/locale/*",
    "./dev/*",
)

#: What builds our own package in an image without an index.
_BUILD_PACKAGES = ("setuptools>=77",)


def missing_programs(*, install: bool) -> list[str]:
    """Return the programs that are not here; with `install` those that cannot be had from Debian either."""
    missing = [name for name in _PACKAGES if shutil.which(name) is None]
    if missing and install and shutil.which("apt-get") is not None:
        packages = sorted({_PACKAGES[name] for name in missing})
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", "-qq", *words], env=environment, stdout=sys.stderr, check=False)
    return [name for name in missing if shutil.which(name) is None]


class DockerEngine:
    """The engine; `work` takes its log, and what images are built from."""

    def __init__(self, work: Path) -> None:
        self.work = work
        work.mkdir(parents=True, exist_ok=True)
        self._name = f"stoker{os.getpid()}"
        self._config = work / "config"
        self._config.mkdir()
        self._log = work / "dockerd.log"
        self._socket = ""
        self._process = self._start()
        try:
            wait_until(self._answers, f"dockerd is up; {self._log} says why not")
            self._make_network()
        except BaseException:
            self.close()
            raise

    # --- its life ---

    def _start(self) -> subprocess.Popen[bytes]:
        own_run = 'mount -t tmpfs stoker /run && exec tini -s -- dockerd "$@"'
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["setpriv", "--pdeathsig", "KILL", *namespaces, "sh", "-c", own_run, "sh"]
        # Rules of iptables, forwarding and a default bridge would stay behind; one network needs none of them.
        settings = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false")
        places = ("--data-root=/run/data", "--host=unix:///run/docker.sock", f"--cgroup-parent={self._name}")
        with self._log.open("wb") as log:
            return subprocess.Popen([*command, *settings, *places], stdout=log, stderr=log)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"dockerd ended with {self._process.returncode}; {self._log} says why")
        for child in psutil.Process(self._process.pid).children():
            # Its own /run is seen by way of /proc; this path is also short enough for a socket, wherever `work` lies.
            self._socket = f"/proc/{child.pid}/root/run/docker.sock"
        if not self._socket or not Path(self._socket).is_socket():
            return False
        return self._run("version", check=False).returncode == 0

    def _make_network(self) -> None:
        subnet = f"10.213.{os.getpid() % 256}.0/24"
        bridge = f"com.docker.network.bridge.name={self._name}"
        self.docker("network", "create", "--subnet", subnet, "--opt", bridge, "fleet")

    def close(self) -> None:
        """End all containers and the engine, and remove what lies outside its namespaces."""
        try:
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                for name in self.docker("ps", "--all", "--quiet").split():
                    self.docker("rm", "--force", "--volumes", name)
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(self._process.pid).children():
                    child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        finally:
            self._process.kill()  # and with it all that is in its PID namespace
            self._process.wait()
            subprocess.run(["ip", "link", "delete", self._name], check=False, stderr=subprocess.DEVNULL)
            _remove_control_group(self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # --- what it is asked ---

    def _run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        own = {"DOCKER_HOST": f"unix://{self._socket}", "DOCKER_CONFIG": str(self._config), "DOCKER_BUILDKIT": "0"}
        done = subprocess.run(
            ["docker", *words],
            env={**os.environ, **own}, capture_output=True, check=False, text=True, timeout=500,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"docker {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def docker(self, *words: str) -> str:
        """Run a command of the client; return what it printed.

        Raises:
            AssertionError: It failed; the text has all that it said.

        """
        return self._run(*words).stdout.strip()

    def address(self, container: str) -> str:
        """Return the address of a container, which this host reaches by the bridge."""
        state = json.loads(self.docker("inspect", container))[0]
        address: str = state["NetworkSettings"]["Networks"]["fleet"]["IPAddress"]
        if not address:
            raise AssertionError(f"{container} has ended:\n{self.logs(container)}")
        return address

    def logs(self, container: str) -> str:
        """Return all that a container has said."""
        done = self._run("logs", container, check=False)
        return done.stdout + done.stderr

    # --- images ---

    def build(self, dockerfile: str, name: str, extras: str) -> None:
        """Build an image of this tree by one of its Dockerfiles, as the page says for a place without an index."""
        if not self.docker("images", "--quiet", "base"):
            self.docker("import", str(_base_archive(self.work)), "base")
        context = self.work / "context"
        shutil.rmtree(context, ignore_errors=True)
        context.mkdir()
        for source in (".dockerignore", "deploy", *_sources()):
            _copy(ROOT / source, context / source)
        _download_wheels(context, extras)
        options = ("--network", "none", "--build-arg", "BASE=base", "--build-arg", f"EXTRAS={extras}")
        self.docker("build", *options, "--file", str(context / dockerfile), "--tag", name, str(context))


def _sources() -> list[str]:
    """Return what an image is built from, as .dockerignore says it; wheels are ours to bring."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line[1:] for line in lines if line.startswith("!") and line != "!wheels"]


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


def _base_archive(work: Path) -> Path:
    """Return the archive of the base image, which takes a minute to make, once for each machine."""
    folder = Path(os.environ.get("STOKER_FLEET_CACHE") or Path.home() / ".cache" / "stoker-fleet")
    archive = folder / f"base-{_SUITE}.tar"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        root, unfinished = work / "base", folder / f".base-{os.getpid()}.tar"
        try:
            include = f"--include={_BASE_PACKAGES}"
            _succeed("debootstrap", "--variant=minbase", include, _SUITE, str(root), "http://deb.debian.org/debian")
            left_out = (f"--exclude={pattern}" for pattern in _LEFT_OUT)
            _succeed("tar", "-C", str(root), *left_out, "-cf", str(unfinished), ".")
            unfinished.replace(archive)
        finally:
            unfinished.unlink(missing_ok=True)
            shutil.rmtree(root, ignore_errors=True)
    return archive


def _download_wheels(context: Path, extras: str) -> None:
    """Put wheels of what the image needs into its context, in the versions that are installed here.

    Equal versions, because batches are compared with those that are built on this machine.
    """
    constraints = context.parent / "constraints.txt"
    constraints.write_text("".join(f"{line}\n" for line in installed_requirements(extras)))
    python = ("--only-binary=:all:", "--implementation=cp", f"--python-version={_PYTHON}")
    options = ("--quiet", "--constraint", str(constraints), "--dest", str(context / "wheels"))
    wanted = (f"{context}[{extras}]", *_BUILD_PACKAGES)
    _succeed(sys.executable, "-m", "pip", "download", *python, *options, *wanted)


def installed_requirements(extras: str) -> Iterator[str]:
    """Yield what our package needs with an extra, in the versions that are installed here."""
    for requirement in map(Requirement, requires("stoker") or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extras}):
            with contextlib.suppress(PackageNotFoundError):
                yield f"{requirement.name}=={version(requirement.name)}"


def _succeed(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, check=False, text=True, timeout=500)
    if done.returncode:
        raise AssertionError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _remove_control_group(name: str) -> None:
    """Remove a control group and those below it, of either version; its processes have ended."""
    root = Path("/sys/fs/cgroup")
    for top in (root / name, *root.glob(f"*/{name}")):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
