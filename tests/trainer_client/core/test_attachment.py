"""What is open with the coordinator: answers name their request, and silence is noticed."""

from __future__ import annotations

import pytest

from shared.errors import ProtocolError, RefusedError
from shared.wire import messages as m
from shared.wire.message_parts import Cursor
from tests.support.lone_core import BATCHES, DIGEST, LoneCore, address, attached
from trainer_client.core import events as e
from trainer_client.core import instructions as i


def cursor(epoch, number, group=4):
    return Cursor(epoch, number, group, DIGEST)


def asked(lone):
    return [one.message for one in lone.ordered(i.ToCoordinator)]


def answers(lone):
    return [(one.serial, one.answer) for one in lone.ordered(i.AnswerAttach)]


def said(lone, message):
    return lone.tell(e.CoordinatorSent(message))


@pytest.fixture
def lone():
    return LoneCore()


def test_it_asks_at_once_and_again_under_the_same_number_until_it_is_answered(lone):
    lone.tell(e.AttachAsked(5, None))
    (first,) = asked(lone)
    assert (first.stream, first.rank, first.world, first.incarnation, first.cursor) == ("train", 0, 1, 1000, None)
    lone.wait(4)
    assert {one.serial for one in asked(lone)} == {first.serial}
    assert len(asked(lone)) in (4, 5)
    said(lone, attached(first.serial))
    assert [serial for serial, _ in answers(lone)] == [5]
    lone.wait(4)
    assert asked(lone) == []


def test_before_it_is_asked_to_attach_it_says_nothing(lone):
    lone.wait(10)
    assert asked(lone) == []
    assert lone.ordered(i.RenewCoordinator) == []
    assert lone.core.attachment.due_s == float("inf")


def test_a_request_that_did_not_get_out_is_said_again_soon(lone):
    lone.tell(e.AttachAsked(1, None))
    lone.tell(e.CoordinatorAway())
    assert lone.core.due_s - lone.now_s <= 0.01
    lone.tell(after_s=0.011)
    assert len(asked(lone)) == 1


@pytest.mark.fault(37)
def test_the_late_answer_to_an_earlier_request_is_dropped_and_counted(lone):
    lone.tell(e.AttachAsked(1, None))
    said(lone, attached(1))
    lone.tell(e.AttachAsked(2, cursor(2, 37)))
    (second,) = asked(lone)
    assert lone.core.attachment.late_answers == 0
    for _ in range(2):
        said(lone, attached(1))
        assert answers(lone) == []
    assert lone.core.attachment.late_answers == 2
    said(lone, attached(second.serial, at=(2, 37)))
    ((serial, answer),) = answers(lone)
    assert (serial, answer.cursor.number) == (2, 37)
    assert lone.core.attachment.late_answers == 2


@pytest.mark.fault(37)
@pytest.mark.parametrize(("at", "group", "fine"), [((2, 37), 4, True), ((0, 0), 4, False), ((2, 36), 4, False),
                                                   ((2, 37), 8, False)])  # fmt: skip
def test_a_position_other_than_the_one_asked_for_is_an_error(lone, at, group, fine):
    lone.tell(e.AttachAsked(1, cursor(2, 37)))
    said(lone, attached(asked(lone)[0].serial, cursor=Cursor(*at, group, DIGEST)))
    ((_, answer),) = answers(lone)
    assert isinstance(answer, m.Attached if fine else ProtocolError)


def test_the_group_may_differ_at_the_beginning_of_an_epoch(lone):
    lone.tell(e.AttachAsked(1, cursor(2, 0)))
    said(lone, attached(1, cursor=Cursor(2, 0, 8, DIGEST)))
    assert isinstance(answers(lone)[0][1], m.Attached)


def test_a_refusal_names_its_request_too(lone):
    no = m.NotAttached(serial=1, code="world", expected="4", got="5", remedy="Use fewer.")
    lone.tell(e.AttachAsked(1, None), e.AttachAsked(2, None))
    said(lone, no)
    assert answers(lone) == []
    said(lone, m.NotAttached(serial=2, code="world", expected="4", got="5", remedy="Use fewer."))
    ((serial, error),) = answers(lone)
    assert serial == 2
    assert isinstance(error, RefusedError)
    assert (error.code, error.where) == ("world", "coordinator")
    assert lone.ordered(i.Fail) == [], "whoever asked may ask for something else"
    lone.wait(4)
    assert asked(lone) == []


def test_while_it_is_told_to_wait_it_asks_when_it_was_told(lone):
    lone.tell(e.AttachAsked(1, None))
    said(lone, m.Wait(serial=1, reason="counting", retry_ms=3000))
    lone.wait(2.8)
    assert asked(lone) == []
    lone.wait(0.4)
    assert len(asked(lone)) == 1
    assert lone.core.attachment.last_reason == "counting"
    said(lone, m.Wait(serial=9, reason="another", retry_ms=3000))
    assert lone.core.attachment.last_reason == "counting"


def test_once_attached_the_next_heartbeat_is_due(lone):
    lone.attach(address(1))
    assert lone.core.attachment.due_s == pytest.approx(lone.now_s + 0.5)


def test_heartbeats_go_out_four_times_a_timeout_and_name_the_list(lone):
    lone.attach(address(1), members=77)
    for _ in range(20):
        lone.wait(0.1)
        said(lone, m.Noted())
    lone.wait(0.6)
    assert {one.members for one in lone.ordered(i.SendProgress)} == {77}
    count = 0
    for _ in range(20):
        lone.wait(0.1)
        count += len(lone.ordered(i.SendProgress))
        said(lone, m.Noted())
        count += len(lone.ordered(i.SendProgress))
    assert count in (3, 4)


def test_what_limits_the_job_answers_a_heartbeat_as_well_and_is_kept(lone):
    lone.attach(address(1))
    strays = lone.core.strays
    lone.wait(0.5)
    told = m.Limited(limit="window", who="", loaders_gain=900, worker_gain=0, window_gain=570)
    said(lone, told)
    limits = lone.core.stream.limits
    assert (limits.latest, limits.window_gain(lone.now_s), lone.core.strays) == (told, 570, strays)
    for _ in range(30):
        lone.wait(0.1)
    assert limits.window_gain(lone.now_s) is None, "the coordinator is away"


@pytest.mark.fault(43)
def test_a_coordinator_that_says_nothing_gets_another_connection_ever_more_rarely(lone):
    lone.attach(address(1))
    renewed_s, lines = [], []
    for _ in range(600):
        lone.wait(0.1)
        renewed_s += [lone.now_s] * len(lone.ordered(i.RenewCoordinator))
        lines += lone.ordered(i.WriteLog)
    assert [line.event for line in lines] == ["the coordinator is silent"], "once, however often it is tried"
    assert renewed_s[0] == pytest.approx(2.0, abs=0.3)
    gaps = [later - sooner for sooner, later in zip(renewed_s, renewed_s[1:], strict=False)]  # noqa: RUF007
    assert gaps == sorted(gaps)
    assert gaps[0] >= 2.0
    assert gaps[-1] == pytest.approx(16.0, abs=0.3)
    said(lone, m.Noted())
    (answers,) = lone.ordered(i.WriteLog)
    assert (answers.event, answers.fields["seconds"]) == ("the coordinator answers again", pytest.approx(60.0, abs=0.3))
    for _ in range(2):
        said(lone, m.Noted())
        assert lone.ordered(i.RenewCoordinator) == []
        lone.wait(1.9)
        assert lone.ordered(i.RenewCoordinator) == []
    lone.wait(0.3)
    assert len(lone.ordered(i.RenewCoordinator)) == 1, "patience begins anew with what is heard"


@pytest.mark.fault(11)
def test_a_coordinator_that_came_back_is_told_where_we_stood_when_we_attached(lone):
    lone.tell(e.AttachAsked(1, cursor(2, 16)))
    said(lone, attached(1, at=(2, 16)))
    said(lone, m.Refused(code="unknown", expected="", got="", remedy=""))
    (again,) = asked(lone)
    assert (again.cursor, again.serial) == (cursor(2, 16), 2)
    said(lone, m.Refused(code="unknown", expected="", got="", remedy=""))
    assert asked(lone) == [], "it is being told"
    said(lone, attached(2, at=(2, 16)))
    assert answers(lone) == []
    assert lone.ordered(i.Fail) == []


def test_who_is_superseded_stops(lone):
    lone.attach(address(1))
    said(lone, m.Refused(code="superseded", expected="to be alone", got="a newer one", remedy="Stop one."))
    (fail,) = lone.ordered(i.Fail)
    assert fail.error.code == "superseded"


SUPERSEDED = m.Refused(code="superseded", expected="to be alone", got="a newer one", remedy="Stop one.")


def said_to_coordinator(lone):
    return [*lone.ordered(i.ToCoordinator), *lone.ordered(i.SendProgress), *lone.ordered(i.RenewCoordinator)]


@pytest.mark.fault(60)
def test_who_is_superseded_is_over_for_good(lone):
    lone.attach(address(1))
    said(lone, SUPERSEDED)
    assert len(lone.ordered(i.HangUp)) == 1
    assert said_to_coordinator(lone) == []
    for late in (SUPERSEDED, m.Refused(code="unknown", expected="", got="", remedy="")):
        said(lone, late)
        assert [*lone.ordered(i.Fail), *lone.ordered(i.HangUp), *said_to_coordinator(lone)] == [], "once is enough"
    for _ in range(40):
        lone.wait(1.0)
        assert said_to_coordinator(lone) == []


@pytest.mark.fault(60)
def test_who_restores_as_it_is_superseded_is_told_so_and_is_over_too(lone):
    lone.attach(address(1))
    lone.tell(e.AttachAsked(2, cursor(1, 0)))
    said(lone, m.NotAttached(serial=2, code="superseded", expected="to be alone", got="a newer one", remedy="Stop."))
    assert [one.error.code for one in lone.ordered(i.Fail)] == ["superseded"]
    assert [one.serial for one in lone.ordered(i.AnswerAttach)] == [2]
    assert len(lone.ordered(i.HangUp)) == 1


def test_a_cursor_that_is_refused_ends_nothing(lone):
    lone.attach(address(1))
    lone.tell(e.AttachAsked(2, cursor(1, 0)))
    said(lone, m.NotAttached(serial=2, code="cursor", expected="a", got="b", remedy="c"))
    assert [*lone.ordered(i.Fail), *lone.ordered(i.HangUp)] == []
    assert [one.serial for one in lone.ordered(i.AnswerAttach)] == [2]


@pytest.mark.fault(60)
def test_who_comes_back_shows_the_tenure_that_it_was_given_last(lone):
    lone.tell(e.AttachAsked(1, None))
    (first,) = asked(lone)
    assert first.tenure is None
    said(lone, attached(1, tenure=41))
    said(lone, m.Refused(code="unknown", expected="", got="", remedy=""))
    (again,) = asked(lone)
    assert again.tenure == 41


def test_the_member_of_a_world_that_is_over_stays_until_it_leaves(lone):
    lone.attach(address(1))
    said(lone, m.Refused(code="unknown", expected="", got="", remedy=""))
    said(lone, m.NotAttached(serial=2, code="changed", expected="world 4", got="world 3", remedy="Join."))
    assert lone.ordered(i.Fail)
    assert lone.ordered(i.HangUp) == []


def test_another_plan_at_a_later_attaching_stops_the_feed(lone):
    lone.attach(address(1))
    said(lone, m.Refused(code="unknown", expected="", got="", remedy=""))
    said(lone, attached(2, cursor=Cursor(0, 0, 4, "plan-2")))
    (fail,) = lone.ordered(i.Fail)
    assert "plan-2" in fail.error.got


def test_nobody_is_late_because_the_trainer_itself_was_away(lone):
    lone.attach(address(1))
    lone.tell(after_s=60)
    assert lone.ordered(i.RenewCoordinator) == []


class TestReaders:
    def test_one_that_reads_on_is_served_with_what_is_there(self, lone):
        lone.attach(address(1))
        lone.open(1)
        assert lone.ordered(i.Serve) == [i.Serve(1, 0)]
        assert lone.ordered(i.Restart) == []

    def test_one_that_reads_elsewhere_begins_anew(self, lone):
        lone.attach(address(1))
        lone.open(1, at=(0, 12))
        assert [(one.reader, one.head) for one in lone.ordered(i.Restart)] == [(1, 4)]

    def test_one_that_goes_on_where_it_was_begins_there(self, lone):
        lone.attach(address(1))
        lone.greet(1)
        lone.open(1, at=(0, 12), taken=3)
        assert [one.number for one in lone.wants()] == [15, 16, 17, 18]

    @pytest.mark.fault(50)
    def test_an_epoch_with_nothing_left_ends_at_once(self, lone):
        lone.attach(address(1), at=(0, 0))
        lone.open(1, at=(0, BATCHES))
        assert lone.ordered(i.Serve) == [i.Serve(1, 0, ended=True)]
        assert lone.ordered(i.Restart) == []

    @pytest.mark.fault(50)
    @pytest.mark.parametrize("evaluation", [False, True])
    def test_so_does_an_epoch_without_batches(self, lone, evaluation):
        lone.attach(address(1), batches=0, evaluation=evaluation)
        lone.open(1)
        assert lone.ordered(i.Serve) == [i.Serve(1, 0, ended=True)]

    def test_an_epoch_that_is_not_known_yet_is_asked_for_first(self, lone):
        lone.attach(address(1))
        lone.greet(1)
        lone.open(1, at=(5, 3))
        assert lone.ordered(i.Serve) == lone.ordered(i.Restart) == []
        (query,) = lone.sent(m.EpochQuery)
        assert (query.epoch, query.group) == (5, 4)
        lone.say(1, m.EpochAnswer(stream="train", epoch=5, group=4, batches=9))
        assert [one.reader for one in lone.ordered(i.Restart)] == [1]
        assert [one.number for one in lone.wants()] == [3, 4, 5, 6]


def test_what_nobody_says_to_a_trainer_is_counted(lone):
    lone.with_workers(1)
    said(lone, m.StatusQuery())
    lone.say(1, m.Ping(number=1))
    assert lone.core.strays == 2


@pytest.mark.fault(43)
def test_a_request_on_a_dead_connection_is_said_again_as_soon_as_that_is_made_anew(lone):
    """The coordinator's machine went without a word: what is sent is taken, and nobody gets it."""
    lone.tell(e.AttachAsked(1, None))
    lone.tell(after_s=0.6)
    lone.tell(after_s=1.3)
    assert lone.core.due_s == pytest.approx(2.0), "the next saying is later"
    lone.tell(after_s=0.11)
    assert [type(order) for order in lone.orders] == [i.RenewCoordinator, i.ToCoordinator]
    assert lone.core.due_s == pytest.approx(lone.now_s + 0.5)


@pytest.mark.fault(43)
def test_the_pauses_between_connections_are_the_jobs_also_when_little_was_heard(lone):
    """The timeout comes with the first answer, and that may be all that ever came."""
    lone.attach(address(1), heartbeat_timeout_ms=500)
    renewed_s = []
    for _ in range(80):
        lone.wait(0.05)
        renewed_s += [lone.now_s] * len(lone.ordered(i.RenewCoordinator))
    assert renewed_s == pytest.approx([0.5, 1.5, 3.5], abs=0.2)
