"""`loader-server status` as people read it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from loader_server.commands.progress import plain_console
from loader_server.commands.status import tables, with_limit
from loader_server.coordinator.events import Received
from loader_server.coordinator.state import CoordinatorState
from loader_server.leases.lease_table import LeaseRules
from shared.wire import messages as m
from shared.wire.message_parts import Failure, Lease
from tests.support.coordinator import SETTINGS, View, attach, beat, coordinator, progress, register
from tests.support.elastic_members import Run


def shown(state: CoordinatorState, most_workers: int | None = None, **more: object) -> list[str]:
    """The lines, with single spaces."""
    out = io.StringIO()
    report = with_limit(state.report(1.0) | {"cut": {}} | more)
    plain_console(file=out, width=400, no_color=True).print(tables(report, most_workers=most_workers))
    return [" ".join(line.replace("│", " ").replace("┃", " ").split()) for line in out.getvalue().splitlines()]


def told(*messages: m.Message, state: CoordinatorState | None = None) -> CoordinatorState:
    state = state or coordinator()
    for message in messages:
        state.handle(Received(b"%d" % getattr(message, "incarnation", 0), message), 0.0)
    return state


def test_an_idle_job_is_shown_without_guesses():
    lines = shown(told())
    assert "train 0 0 - - - - - -" in lines
    assert "dev (evaluation) 0 0 - - - - - -" in lines
    assert not [line for line in lines if "limit" in line]


def test_what_was_read_stands_beside_what_was_trained():
    lines = shown(told(attach(0, 2, replicas=2), progress(0, 0, 25, read_number=33)))
    assert "train 0 25 100 33 0% - - 1" in lines
    assert "train is read by ranks 0-1 of 2 (host:0)" in lines


def test_a_trainer_that_reads_the_next_epoch_already_is_shown_so():
    lines = shown(told(attach(), progress(0, 0, 99, read_epoch=1, read_number=2)))
    assert "train 0 99 100 2 of epoch 1 0% - - 1" in lines


@pytest.mark.parametrize(
    ("waited", "line"),
    [
        (900, "limit: transforms in workers (98 % busy); 1 more worker +100 %, endless loaders 10 times"),
        (10, "limit: trainers (99 % of their time in steps); endless loaders would gain nothing"),
    ],
)
def test_the_first_line_says_what_limits_the_job(waited, line):
    state = told(register(), attach())
    for second in range(6):  # 100 ms a batch in the worker
        built = 10 * second
        busy = replace(beat(busy_us=98_000 * built), built=built, read_us=2000 * built, awaited_us=0)
        state.handle(Received(b"1", busy), float(second))
        state.handle(Received(b"1000", progress(0, 0, built, waited_permille=waited)), float(second))
    assert shown(state)[1] == line
    assert shown(state)[2].startswith("busy: reads ")


@pytest.mark.parametrize(
    ("there", "wanted", "line"),
    [(1, 5, "workers: 1 is there, 5 are wanted"), (3, 1, "workers: 3 are there, 1 is wanted"), (2, None, None)],
)
def test_a_line_says_how_many_workers_are_wanted(there, wanted, line):
    state = told(*(register(f"w{number}", number) for number in range(1, there + 1)))
    lines = shown(state, workers_wanted=wanted)
    assert [found for found in lines if found.startswith("workers: ")] == ([line] if line else [])


def test_native_code_that_may_not_keep_to_the_processor_level_is_named():
    lines = shown(told(register(), state=coordinator(View(native_code={"own:denoise": ["torch", "scipy"]}))))
    said = "train: native code of own:denoise may not keep to the job's processor level: torch, scipy"
    assert [line for line in lines if "native code" in line] == [said]


def test_workers_are_shown_by_their_last_heartbeat_two_of_one_name_too():
    lines = shown(told(register(incarnation=1), register(incarnation=2), beat(incarnation=1)))
    assert "w0 127.0.0.1:11 - 1 2 3 4 45% 1.0" in lines
    assert "w0 127.0.0.1:12 - 0 0 0 0 - 1.0" in lines


def test_on_a_screen_workers_that_are_out_of_line_come_first_and_the_others_are_counted():
    masks = replace(beat("vm-11", 11), remote_bytes=0, remote_found=0)
    state = told(*(register(f"vm-{number}", number) for number in range(1, 13)), masks)
    names = [line.split()[0] for line in shown(state) if line.startswith("vm-")]
    assert names == ["vm-11", *(f"vm-{number}" for number in range(1, 13) if number != 11)], "vm-2 before vm-10"
    few = shown(state, most_workers=3)
    assert [line.split()[0] for line in few if line.startswith("vm-")] == ["vm-11", "vm-1", "vm-2"]
    assert "and 9 more, all well" in few
    assert "and 12 more, 1 of them out of line" in shown(state, most_workers=0)


def test_a_busy_job_fits_on_80_columns_and_24_lines():
    state = told(*(register(f"vm-{number}", number) for number in range(20)))
    world = [attach(rank, 50, name=f"gpu{rank}:{1000 + rank}") for rank in range(50)]
    told(*world, state=state)
    for second in range(8):
        for number in range(20):
            built = 9 * second
            busy = replace(
                beat(f"vm-{number}", number, busy_us=98_000 * built),
                built=built,
                masked=0,
                remote_bytes=0,
                remote_found=0,
            )
            state.handle(Received(b"%d" % number, busy), float(second))
        for rank in range(50):
            read = progress(rank, 0, 3 * second, waited_permille=700 + 3 * rank)
            state.handle(Received(b"%d" % read.incarnation, read), float(second))
    out = io.StringIO()
    console = plain_console(file=out, width=80, height=24, no_color=True)
    console.print(tables(with_limit(state.report(8.0) | {"cut": {}}), most_workers=12))
    lines = out.getvalue().splitlines()
    assert len(lines) <= 24, out.getvalue()
    assert lines[1].startswith("limit: ")
    assert "train is read by 50 trainers; most waits rank 49 of 50 (gpu49:1049), 85%" in lines
    assert any(line.startswith("and 8 more, all well") for line in lines)


def test_what_workers_read_of_remote_files_is_shown_where_there_are_any():
    lines = shown(told(register(incarnation=1), register(incarnation=2), beat(incarnation=1)))
    at = lines.index("remote files of fetched blocks found waited for")
    assert [line for line in lines[at + 1 :] if line.startswith("w0")] == ["w0 7.0 MiB 8 9"]
    none = {"remote_bytes": 0, "remote_found": 0, "remote_waited": 0}
    cached = told(register(incarnation=1), replace(beat(), **(none | {"remote_found": 3})))
    assert "w0 0.0 MiB 3 0" in shown(cached)
    assert not [line for line in shown(told(register(), replace(beat(), **none))) if "remote" in line]


@pytest.mark.fault(52)
def test_of_many_trainers_some_are_named_and_what_was_cut_is_said():
    state = CoordinatorState(replace(SETTINGS, group=1), {"dev": View(evaluation=True)})
    told(*(attach(stream="dev", incarnation=number, name=f"r{number:02d}") for number in range(20)), state=state)
    lines = shown(state, cut={"trainers": 7, "workers": 2})
    (row,) = [line for line in lines if line.startswith("dev is")]
    assert row.endswith("rank 0 of 1 (r06), rank 0 of 1 (r07), and 12 more")
    at = lines.index(row)
    assert lines[at + 1 : at + 3] == [
        "and 7 more trainers: the report is cut to what a message carries",
        "and 2 more workers: the report is cut to what a message carries",
    ]


def test_a_stream_in_queue_mode_shows_its_leases_and_what_was_given_up():
    state = coordinator(View(leases=LeaseRules(floor_s=30.0, tries=1)))
    told(attach(), state=state)
    lease = {"stream": "train", "work": "train", "incarnation": 1000, "generation": 1, "in_hand": None, "before": 1}
    lease |= {"book": None, "wanted": 3, "snapshot": False}
    told(m.Outcomes(serial=1, done=(), failed=(), returned=(), **lease), state=state)
    # Brackets, as rich's markup has them, come out as they are.
    failed = (Failure(Lease(0, 0, 1), "loss of [/INST] is [red]"),)
    told(m.Outcomes(serial=2, done=(Lease(0, 1, 1),), failed=failed, returned=(), **lease), state=state)
    lines = shown(state)
    assert "train train 0 95 3 2 1 0 0 1" in lines
    # No rank, and no place that was read up to: both trainers may have any batch.
    assert "train 0 2 100 - - - - 1" in lines
    assert "train is read by host:0" in lines
    assert "train (train): tries failed: loss of [/INST] is [red] (1)" in lines
    given_up = "train (train): batches were given up because trainers failed at them too often: "
    assert f"{given_up}0 of epoch 0 (loss of [/INST] is [red])" in lines


def test_what_all_ranks_came_to_is_shown():
    state = told(attach(), attach(stream="dev", incarnation=1))
    assert not [line for line in shown(state) if "samples" in line]
    values = {"epoch": 3, "step": 90, "rows": 640, "serial": 1}
    told(
        m.Results(
            stream="train",
            incarnation=1000,
            values=(("loss", 0.123456), ("bad", None)),
            ended="",
            aside=False,
            **values,
        ),
        state=state,
    )
    assert "train 3 90 640 loss 0.1235, bad not a number" in shown(state)


def test_evaluations_of_two_models_have_a_line_each():
    state = told(attach(stream="dev", incarnation=1), attach(stream="dev", incarnation=2))
    for who, loss in ((1, 641.1), (2, 135.6)):
        values = {"epoch": 1, "step": 11, "rows": 100, "serial": 1, "values": (("loss", loss),), "ended": ""}
        told(
            m.Results(stream="dev", incarnation=who, evaluation=f"levels:model {who}", aside=False, **values),
            state=state,
        )
    lines = shown(state)
    assert "dev, levels:model 1 1 11 100 loss 641.1" in lines
    assert "dev, levels:model 2 1 11 100 loss 135.6" in lines


def test_a_run_that_came_to_its_end_is_told_from_one_that_is_gone():
    state = told(attach())
    left = m.Detach(stream="train", rank=0, incarnation=1000)
    end = m.Results(
        stream="train",
        incarnation=1000,
        epoch=3,
        step=90,
        rows=0,
        serial=1,
        values=(),
        ended="3 epochs are reached",
        aside=False,
    )
    line = "train: the run came to its end after epoch 3: 3 epochs are reached"
    assert line not in shown(told(end, state=state)), "it is there still"
    assert line in shown(told(left, state=state))
    assert line not in shown(told(left, state=told(attach())))


class TestElastic:
    def test_how_the_world_stands(self):
        run = Run()
        for _ in range(4):
            run.start()
        run.go_on(3)
        run.kill(1)
        run.go_on(7)
        assert "train 2 training 3 2 to 3 0 1 host:1 is gone" in shown(run.state)

    def test_who_is_waited_for(self):
        run = Run()
        run.start()
        run.tick()
        assert "train: nobody trains, 1 more of at least 2 trainers are waited for" in shown(run.state)
        run.start()
        run.start()
        run.go_on(3)
        run.leave(2)
        line = "train: the next world begins once these have joined: host:1, host:3"
        assert line in shown(run.state)

    def test_a_stream_that_never_had_a_world_has_no_line(self):
        assert not [line for line in shown(told(attach())) if "elastic" in line]


class TestVerifiers:
    def test_they_stand_in_a_table_of_their_own_and_not_among_trainers(self):
        verifier = attach(at=(3, 0), incarnation=7, work="verify", name="here:9")
        read = progress(0, 0, 0, incarnation=7, read_epoch=3, read_number=41)
        lines = shown(told(attach(), verifier, read))
        at = lines.index("verified by epoch read of silent s")
        assert "train here:9 3 41 100 1.0" in lines[at:]
        assert "train is read by rank 0 of 1 (host:0)" in lines

    def test_nobody_means_no_table(self):
        assert not [line for line in shown(told(attach())) if "verified" in line]
