"""What workers answer, and what counts of it, through the core's one door."""

from __future__ import annotations

from tests.support.lone_core import LoneCore, pushed
from trainer_client.core import events as e
from trainer_client.core import instructions as i


def test_the_first_valid_answer_is_offered_and_an_unasked_one_is_not():
    lone = LoneCore()
    want, *_ = lone.with_workers(1)
    lone.push(want)
    (offer,) = lone.ordered(i.Offer)
    assert (offer.seq, offer.slot, offer.batch.number) == (0, want.ticket.slot, 0)
    lone.push(want)
    assert lone.ordered(i.Offer) == []
    assert lone.stream.answers.stale == 1


def test_a_payload_is_written_before_it_counts():
    lone = LoneCore()
    want, *_ = lone.with_workers(1, shared=False)
    lone.say(1, pushed(want), "payload")
    (write,) = lone.ordered(i.Write)
    assert (write.header.ticket, write.payload) == (want.ticket, "payload")
    assert lone.ordered(i.Offer) == []
    lone.tell(e.Checked(write.connection_id, write.header, valid=True))
    assert len(lone.ordered(i.Offer)) == 1


def test_what_is_in_its_slot_is_looked_at_where_that_is_wanted():
    lone = LoneCore(verify=True)
    want, *_ = lone.with_workers(1)
    lone.say(1, pushed(want))
    (check,) = lone.ordered(i.Check)
    lone.tell(e.Checked(check.connection_id, check.header, valid=True))
    assert len(lone.ordered(i.Offer)) == 1


def test_a_frame_whose_slot_went_to_somebody_else_meanwhile_counts_for_nothing():
    lone = LoneCore()
    want, *_ = lone.with_workers(1, shared=False)
    lone.say(1, pushed(want), "payload")
    (write,) = lone.ordered(i.Write)
    lone.tell(e.ConnectionDown(lone.connection_id(1)), e.Checked(write.connection_id, write.header, valid=True))
    assert lone.ordered(i.Offer) == []
    assert lone.stream.answers.stale == 1
