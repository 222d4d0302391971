"""Questions that any worker can answer: who is asked, when again, and which answer counts."""

from __future__ import annotations

import pytest

from shared.wire import messages as m
from tests.support.lone_core import DIGEST, LoneCore, attached
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.asking.questions import Questions
from trainer_client.core.stream_spec import StreamSpec

LINKS = (10, 20, 30, 40, 50)


def name_of(sample):
    return m.NameQuery(stream="train", plan_digest=DIGEST, sample=sample)


@pytest.fixture
def out():
    return []


@pytest.fixture
def questions(out):
    return Questions(StreamSpec.of(attached()), out)


def put(questions, out, now_s, connection_ids=LINKS):
    """What is put to whom at this time."""
    out.clear()
    questions.tick(connection_ids, now_s)
    return [(order.connection_id, order.message) for order in out]


def test_a_question_is_put_to_three_workers_and_then_to_the_next(questions, out):
    questions.ask(name_of(1), 5.0)
    assert put(questions, out, 5.0) == [(connection_id, name_of(1)) for connection_id in (10, 20, 30)]
    assert questions.due_s == 5.2
    assert put(questions, out, 5.19) == []
    assert put(questions, out, 5.2) == [(connection_id, name_of(1)) for connection_id in (40, 50, 10)]


def test_fewer_workers_are_asked_once_each_and_none_is_no_error(questions, out):
    questions.ask(name_of(1), 5.0)
    assert put(questions, out, 5.0, connection_ids=()) == []
    assert sorted(put(questions, out, 6.0, connection_ids=(10, 20))) == [(10, name_of(1)), (20, name_of(1))]


def test_each_question_has_a_time_of_its_own(questions, out):
    questions.ask(name_of(1), 5.0)
    put(questions, out, 5.0)
    questions.ask(name_of(2), 5.1)
    questions.ask(name_of(1), 5.1)  # it was put lately
    assert {question for _, question in put(questions, out, 5.1)} == {name_of(2)}
    assert questions.due_s == 5.2
    assert {question for _, question in put(questions, out, 5.2)} == {name_of(1)}


def test_the_first_answer_counts(questions, out):
    query = m.EpochQuery(stream="train", plan_digest=DIGEST, epoch=2, group=4)
    questions.ask(query, 5.0)
    questions.ask(name_of(1), 5.0)
    for said, order in (
        (m.EpochAnswer(stream="train", epoch=2, group=4, batches=9), i.AnswerQuestion(query, 9)),
        (m.NameAnswer(stream="train", sample=1, name="a.wav"), i.AnswerQuestion(name_of(1), "a.wav")),
    ):
        questions.answer(said)
        assert out == [order]
        questions.answer(said)
        assert out == [order]
        out.clear()
    assert questions.due_s == float("inf")
    assert put(questions, out, 9.0) == []


def test_the_core_asks_those_that_are_there_until_one_answers():
    lone = LoneCore()
    lone.with_workers(5)
    lone.tell(e.QuestionAsked(name_of(41)))
    first = [one.connection_id for one in lone.ordered(i.ToWorker) if one.message == name_of(41)]
    assert len(set(first)) == 3
    lone.wait(0.25)
    again = [one.connection_id for one in lone.ordered(i.ToWorker) if one.message == name_of(41)]
    assert set(again) - set(first)
    lone.say(2, m.NameAnswer(stream="train", sample=41, name="a.wav"))
    assert lone.ordered(i.AnswerQuestion) == [i.AnswerQuestion(name_of(41), "a.wav")]
    lone.wait_hearing(1, 1, 2, 3, 4, 5)
    assert not [one for one in lone.ordered(i.ToWorker) if one.message == name_of(41)]
