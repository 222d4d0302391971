"""Messages that say no: cut to what a message carries, tied to their request, and an error for whoever gets one."""

import pytest

from shared.errors import DataError, RefusedError
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.parts import Ticket
from shared.wire.refusals import error_of, not_attached, refused, unbuilt

LONG = "x" * 5000


def test_what_is_too_long_is_cut_to_what_a_message_carries():
    for message in (refused("c", LONG, LONG, LONG), unbuilt(Ticket(1, 2), "c", LONG, LONG, LONG, LONG)):
        assert decode(encode(message)) == message
        assert {len(getattr(message, name)) for name in ("expected", "got", "remedy")} == {4000}
    assert len(message.where) == 4000


def test_the_refusal_of_an_attach_names_its_request():
    assert not_attached(7, refused("role", "a", "b", "c")) == m.NotAttached(
        serial=7, code="role", expected="a", got="b", remedy="c"
    )


@pytest.mark.parametrize(
    "said", [refused("c", "a", "b", "Do."), not_attached(1, refused("c", "a", "b", "Do."))], ids=lambda said: said.kind
)
def test_a_refusal_becomes_an_error(said):
    error = error_of(said, "there")
    assert isinstance(error, RefusedError)
    assert (error.code, str(error)) == ("c", "there: expected a, got b. Do.")


def test_a_batch_that_cannot_be_built_is_an_error_of_the_data():
    error = error_of(unbuilt(Ticket(1, 2), "failed", "a", "b", "", "Do."), "there")
    assert (type(error), error.exit_code, str(error)) == (DataError, 1, "there: expected a, got b. Do.")
