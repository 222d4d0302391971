"""Results are told until all ranks have told theirs, and whoever asked hears of each answer."""

from __future__ import annotations

from shared.wire import messages as m
from tests.support.lone_core import LoneCore
from trainer_client.core import events as e
from trainer_client.core import instructions as i

VALUES = (("loss", 0.5),)


def told(serial=1, epoch=3):
    return e.ResultsReported(serial, epoch, 30, 8, VALUES, "stopped" * 1000)


def sent(lone):
    return [one.message for one in lone.ordered(i.ToCoordinator) if isinstance(one.message, m.Results)]


def hear(lone, serial, *, whole):
    lone.tell(e.CoordinatorSent(m.Aggregate(serial=serial, whole=whole, rows=16, values=VALUES if whole else ())))
    return [(one.answer.serial, one.answer.whole) for one in lone.ordered(i.AnswerResults)]


def test_told_at_once_and_again_until_it_is_whole():
    lone = LoneCore()
    lone.attach()
    lone.tell(told())
    (said,) = sent(lone)
    assert said == m.Results(
        stream="train",
        incarnation=1000,
        serial=1,
        epoch=3,
        step=30,
        rows=8,
        values=(("loss", 0.5),),
        ended=("stopped" * 1000)[:4000],
        aside=False,
    )
    lone.wait(0.9)
    assert sent(lone) == []
    lone.wait(0.2)
    assert sent(lone) == [said]
    assert hear(lone, 1, whole=False) == [(1, False)]
    assert lone.core.due_s <= lone.now_s + 1
    lone.wait(1.0)
    assert sent(lone) == [said]
    assert hear(lone, 1, whole=True) == [(1, True)]
    lone.wait(3.0)
    assert sent(lone) == []
    assert hear(lone, 1, whole=True) == []
    assert lone.core.strays == 1


def test_those_before_one_that_is_whole_are_over_and_few_are_open_at_a_time():
    lone = LoneCore()
    lone.attach()
    lone.tell(*(told(serial, serial) for serial in range(1, 21)))
    assert [one.serial for one in sent(lone)] == list(range(5, 21))
    hear(lone, 19, whole=True)
    lone.wait(1.1)
    assert [one.serial for one in sent(lone)] == [20]


def test_an_answer_before_anything_was_told_is_a_stray():
    lone = LoneCore()
    assert hear(lone, 1, whole=True) == []
    assert lone.core.strays == 1
