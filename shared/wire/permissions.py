"""Who may say what to whom: the roles that keys have, and the answer to a key that oversteps its role.

Rules: pure; a server does not understand messages that are missing from its table, whoever sends them. Which key has
which role is decided in `keys`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from shared.wire import messages as m
from shared.wire.refusals import not_attached, refused
from shared.wire.topics import server_messages as servers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["ROLES", "TO_COORDINATOR", "TO_PARAMETER_SERVER", "TO_WORKER", "Role", "refusal"]

Role = Literal["coordinator", "worker", "trainer"]

ROLES: tuple[Role, ...] = ("coordinator", "worker", "trainer")

_TRAINER: frozenset[Role] = frozenset(("trainer",))
_WORKER: frozenset[Role] = frozenset(("worker",))
_LOADERS: frozenset[Role] = frozenset(("coordinator", "worker"))

#: What the coordinator understands, and from whom.
TO_COORDINATOR: Mapping[type[m.Message], frozenset[Role]] = {
    m.Attach: _TRAINER,
    m.Join: _TRAINER,
    m.Progress: _TRAINER,
    m.Detach: _TRAINER,
    m.Outcomes: _TRAINER,
    m.Results: _TRAINER,
    m.StandsStill: _TRAINER,
    m.GraphOffer: _TRAINER,
    m.GraphPiece: _TRAINER,
    m.BundleWanted: _WORKER,
    m.Register: _WORKER,
    m.BuilderParts: _WORKER,
    m.Beat: _WORKER,
    m.Culprit: _WORKER,
    m.Leave: _WORKER,
    m.Failing: _WORKER,
    m.Forgive: _LOADERS,
    m.StatusQuery: frozenset(ROLES),
}

#: What a worker understands, and from whom.
TO_WORKER: Mapping[type[m.Message], frozenset[Role]] = {
    m.Hello: _TRAINER,
    m.Want: _TRAINER,
    m.Cancel: _TRAINER,
    m.Ping: _TRAINER,
    m.EpochQuery: _TRAINER,
    m.NameQuery: _TRAINER,
}

#: What a parameter server understands: trainers', and the first server's, which is one of theirs.
TO_PARAMETER_SERVER: Mapping[type[m.Message], frozenset[Role]] = dict.fromkeys(
    (servers.Look, servers.Withdraw, servers.ServeShare, servers.Pull, servers.Push, servers.SetRate, servers.Save,
     servers.Finish, servers.Quit, servers.Order), _TRAINER,
)  # fmt: skip

_REMEDY = (
    "Use the pair of that role (`loader-server keys` says which machine needs which files), or put the key's public "
    "half there."
)


def refusal(message: m.Message, allowed: Collection[Role], held: Collection[Role]) -> m.Refused | m.NotAttached:
    """The answer to a message that needs one of the `allowed` roles, from a key that has only those in `held`."""
    expected = f"a key in {_folders(allowed)}"
    got = f"{message.kind} with {f'a key in {_folders(held)}' if held else 'a key that is not allowed, or no longer'}"
    answer = refused("role", expected, got, _REMEDY)
    return not_attached(message.serial, answer) if isinstance(message, m.Attach | m.Join) else answer


def _folders(roles: Collection[Role]) -> str:
    return " or ".join(f"allowed/{role}" for role in ROLES if role in roles)
