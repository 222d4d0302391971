"""`Wants` with a ledger and a clock that is a number: what the tests of its rules talk to."""

from __future__ import annotations

from shared.errors import ReadError
from trainer_client import want_events as e
from trainer_client import wants as w
from trainer_client.course import Position, Target
from trainer_client.ledger import Ledger

__all__ = ["TIMEOUT_S", "Trainer", "error", "numbers", "sent", "target"]

TIMEOUT_S = 2.0


def target(number: int) -> Target:
    return Target(Position(0, number, 1), 0, 0, number, empty=False)


def error(kind: type = ReadError, **more):
    return kind(expected="a file", got="an input/output error", where="w1", remedy="Look at the disk.", **more)


class Trainer:
    """`Wants` and what stands around it; `said` are the orders of the last event."""

    def __init__(self, *, slots: int = 8, prefetch: int = 4, lost_timeout_s: float = 60.0, hedge_floor_s: float = 1e9):
        self.ledger = Ledger(slots)
        settings = w.WantSettings(
            prefetch=prefetch,
            heartbeat_timeout_s=TIMEOUT_S,
            lost_timeout_s=lost_timeout_s,
            hedge_floor_s=hedge_floor_s,
        )
        self.wants = w.Wants(settings, self.ledger)
        self.now_s = 100.0
        self.said: list[e.Instruction] = []
        self.end = 0

    def __call__(self, event: e.Event, after_s: float = 0.0) -> list[e.Instruction]:
        self.now_s += after_s
        self.wants.note(event, self.now_s)
        self.said = self.wants.decide(self.now_s)
        return self.said

    def up(self, *workers: int, in_slot: bool = True) -> None:
        for one in workers:
            self(e.WorkerUp(one, f"w{one}", in_slot))

    def extend(self, batches: int) -> list[e.SendWant]:
        targets = tuple(target(self.end + one) for one in range(batches))
        self.end += batches
        return self.asked(e.Extended(targets))

    def asked(self, event: e.Event, after_s: float = 0.0) -> list[e.SendWant]:
        return [one for one in self(event, after_s) if isinstance(one, e.SendWant)]

    def wait(self, seconds: float, *, heard: tuple[int, ...] = ()) -> list[e.Instruction]:
        """Time goes by in small steps; these workers are heard of all the while."""
        orders: list[e.Instruction] = []
        for _ in range(round(seconds / 0.25)):
            self.now_s += 0.25
            for one in heard:
                orders += self(e.Heard(one))
            orders += self(e.Ticked())
        return orders

    def arrive(self, want: e.SendWant, *, valid: bool = True, after_s: float = 0.01) -> list[e.Instruction]:
        return self(e.Arrived(want.worker, want.ticket, valid=valid), after_s)

    def failure(self, orders: list[e.Instruction] | None = None):
        fails = [one.error for one in (self.said if orders is None else orders) if isinstance(one, e.Fail)]
        return fails[0] if fails else None


def sent(orders: list[e.Instruction]) -> list[e.SendWant]:
    return [one for one in orders if isinstance(one, e.SendWant)]


def numbers(wants: list[e.SendWant]) -> list[int]:
    return [one.target.number for one in wants]
