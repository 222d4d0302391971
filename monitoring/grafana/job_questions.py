"""What the dashboard of a job asks: panels titled with the questions that a user has, in the order to ask them in.

Rules: each query names the job, so that the dashboard shows one job; ratios are shown in per cent; every declared
metric is used in a query here or in a rule. It begins with single values, which tell at a glance whether to read on.
"""

from __future__ import annotations

from monitoring.grafana.job_details import DETAILS
from monitoring.grafana.panels import Panel, Query, Row

__all__ = ["ROWS"]

_GOOD, _ODD, _BAD = "green", "orange", "red"
_FOURTH = (6, 4)

_GLANCE = Row(
    "At a glance",
    (
        Panel(
            title="What limits it",
            kind="stat",
            unit="none",
            named=True,
            size=_FOURTH,
            about="What limits each stream, as `loader-server status` says it in a sentence, with what would help.",
            queries=(Query("stoker_limit{@stream} == 1", "{{stream}}: {{limit}}"),),
            runbook="StokerDataStall",
        ),
        Panel(
            title="Waiting for data",
            kind="stat",
            unit="percentunit",
            thresholds=((0.05, _ODD), (0.5, _BAD)),
            size=_FOURTH,
            about="Share of its time that the longest-waiting trainer waits.",
            queries=(Query("stoker_waited_ratio{@stream}", "{{stream}}"),),
            runbook="StokerDataStall",
        ),
        Panel(
            title="Steps a second",
            kind="stat",
            unit="none",
            size=_FOURTH,
            about="Of the fastest rank; in queue mode of all trainers together.",
            queries=(
                Query(
                    'sum by (stream) (rate(stoker_trained_rounds_total{@trainer, rank="none"}[$__rate_interval]))'
                    " or max by (stream) (rate(stoker_trained_rounds_total{@trainer}[$__rate_interval]))",
                    "{{stream}}",
                ),
            ),
        ),
        Panel(
            title="Left of the epoch",
            kind="stat",
            unit="s",
            size=_FOURTH,
            about="Batches of the epoch that are left, divided by how many are read a second.",
            queries=(
                Query(
                    "max by (stream) (stoker_epoch_batches{@stream} - stoker_trained_batch_number{@stream})"
                    " / (sum by (stream) (stoker:read_batches:rate{@stream}) > 0)",
                    "{{stream}}",
                ),
            ),
            runbook="StokerNoProgress",
        ),
        Panel(
            title="Workers",
            kind="stat",
            unit="none",
            size=_FOURTH,
            about="Workers that are there, and how many the job could use.",
            queries=(Query("stoker_workers{@job}", "there"), Query("stoker_workers_wanted{@job}", "wanted")),
            runbook="StokerWorkersMissing",
        ),
        Panel(
            title="Trainers",
            kind="stat",
            unit="none",
            size=_FOURTH,
            about="Trainers that are attached, by stream.",
            queries=(Query("stoker_trainers{@stream}", "{{stream}}"),),
            runbook="StokerTrainerGone",
        ),
        Panel(
            title="Alerts",
            kind="stat",
            unit="none",
            thresholds=((1, _BAD),),
            size=_FOURTH,
            about="Alerts that are firing for this job; 0 if none is.",
            queries=(Query('count(ALERTS{@job, alertstate="firing"}) or 0 * sum(stoker_workers{@job})', "firing"),),
        ),
        Panel(
            title="Version",
            kind="stat",
            unit="none",
            named=True,
            size=_FOURTH,
            about="Versions of Stoker that the job's processes run: several in a rolling restart.",
            queries=(Query("count by (version, protocol) (stoker_build_info{@job})", "{{version}}, {{protocol}}"),),
        ),
        Panel(
            title="What limited it when?",
            kind="state-timeline",
            unit="none",
            size=(24, 6),
            about="Each stream's limits over time: coloured where it was the limit.",
            queries=(Query("stoker_limit{@stream} == 1", "{{stream}}: {{limit}}"),),
            runbook="StokerDataStall",
        ),
    ),
)

_HEALTH = Row(
    "Is the job well?",
    (
        Panel(
            title="Is the accelerator waiting for data?",
            thresholds=((0.05, _ODD), (0.5, _BAD)),
            runbook="StokerDataStall",
            unit="percentunit",
            most=1,
            about="Share of time that each trainer waits, as the training loop reports it (FeedCheckpoint does); "
            "otherwise as the reader of the feed sees it, which under tf.data is an upper bound. Above 5 %: go on "
            "with the next row.",
            queries=(Query("stoker:wait:ratio{@trainer}", "{{trainer}}, rank {{rank}}"),),
        ),
        Panel(
            title="How far is training?",
            unit="percentunit",
            most=1,
            about="Share of the epoch that the slowest rank has trained on. In queue mode: of the first epoch that is "
            "not done, the share that all trainers together have done.",
            queries=(Query("stoker:epoch:ratio{@stream}", "{{stream}}"),),
        ),
        Panel(
            title="Which epoch is it in, and does it move?",
            runbook="StokerNoProgress",
            unit="none",
            about="Epochs count from 0. Moves: in how many scrapes of the last ten minutes the cursor had moved, or "
            "batches of a queue were done; 0 raises an alert.",
            queries=(
                Query("stoker_trained_epoch{@stream}", "epoch of {{stream}}"),
                Query("stoker:progress:changes10m{@stream}", "moves of {{stream}}"),
            ),
        ),
        Panel(
            title="In queue mode, what became of the batches?",
            runbook="StokerBatchesGivenUp",
            unit="none",
            stacked=True,
            about="Batches of the epochs under way: open (nobody has them), running (trainers have them), done, and "
            "given up, of all epochs. Open for long while nothing runs: no trainer asks for more.",
            queries=(
                Query("sum by (stream, work, state) (stoker_leases{@stream})", "{{stream}}, {{work}}: {{state}}"),
            ),
        ),
        Panel(
            title="Does the model learn?",
            unit="none",
            about="Loss and metrics of the last epoch and of evaluations, over all ranks, if the trainers report them.",
            queries=(Query("stoker_result{@stream}", "{{result}} of {{stream}}"),),
        ),
        Panel(
            title="Who is there?",
            runbook="StokerWorkersMissing",
            unit="none",
            about="Workers and trainers as the coordinator knows them, and processes whose metrics can be scraped.",
            queries=(
                Query("stoker_workers{@job}", "workers"),
                Query("stoker_workers_wanted{@job}", "workers wanted"),
                Query("stoker_trainers{@stream}", "trainers of {{stream}}"),
                Query("sum by (role) (up{@job})", "{{role}} processes"),
            ),
        ),
        Panel(
            title="How fast are batches built and read?",
            unit="suffix:/s",
            about="Batches per second. Built far above read: batches are thrown away, or trainers fill their slots.",
            queries=(
                Query("stoker:built_batches:rate{@stream}", "built for {{stream}}"),
                Query("stoker:read_batches:rate{@stream}", "read from {{stream}}"),
            ),
        ),
        Panel(
            title="How fast does each trainer train?",
            runbook="StokerRanksApart",
            unit="suffix:/s",
            about="Rounds per second. In lockstep all ranks are as fast as the slowest. In queue mode a round is a "
            "batch, nobody waits for others, and the job is as fast as all together.",
            queries=(
                Query("rate(stoker_trained_rounds_total{@trainer}[$__rate_interval])", "{{trainer}}, rank {{rank}}"),
            ),
        ),
    ),
)

_WAITING = Row(
    "What do trainers wait for?",
    (
        Panel(
            title="Who is the bottleneck, the loaders or the trainers?",
            unit="percentunit",
            about="Share of its time that the longest-waiting trainer waits for data, as trainers tell the "
            "coordinator. From 5 % on the loaders are the bottleneck.",
            queries=(Query("stoker_waited_ratio{@stream}", "{{stream}}"),),
        ),
        Panel(
            title="Is it building, transfer or conversion?",
            unit="percentunit",
            stacked=True,
            about="Share of the reader's time. build: add workers. transfer: the network, or wants that queue at "
            "workers. conversion: views and copies in the trainer.",
            queries=(
                Query(
                    "avg by (stream, part) (rate(stoker_data_wait_split_seconds_total{@trainer}[$__rate_interval]))",
                    "{{stream}}: {{part}}",
                ),
            ),
        ),
        Panel(
            title="What does training spend its time on?",
            runbook="StokerRetracing",
            unit="percentunit",
            stacked=True,
            about="Share of time in steps, in checkpoints, and in tracing the step before it begins, where the loop "
            "says so (trainer-client train and FeedCheckpoint do). Retraced: steps traced in the midst of training, "
            "whose shape was not planned.",
            queries=(
                Query(
                    "avg by (stream, phase) (rate(stoker_phase_seconds_total{@trainer}[$__rate_interval]))",
                    "{{stream}}: {{phase}}",
                ),
                Query("sum by (stream) (increase(stoker_retraces_total{@trainer}[10m]))", "{{stream}}: retraced"),
            ),
        ),
        Panel(
            title="Who is in an elastic run?",
            unit="short",
            about="Trainers that train, and such that wait for a place: too few are there, or there are spares. "
            "Changes: worlds that were over because trainers came or went.",
            queries=(
                Query("sum by (stream, kind) (stoker_elastic_trainers{@stream})", "{{stream}}: {{kind}}"),
                Query("sum by (stream) (increase(stoker_world_changes_total{@stream}[10m]))", "{{stream}}: changes"),
            ),
        ),
        Panel(
            title="How long does one batch keep its reader waiting?",
            unit="s",
            about="Median, and the slowest batch in ten and in a hundred. A long tail: a few slow batches, or a worker "
            "that stalls.",
            queries=tuple(
                Query(
                    f"histogram_quantile({quantile}, "
                    "sum by (le, stream) (rate(stoker_data_wait_seconds_bucket{@trainer}[5m])))",
                    f"{{{{stream}}}}: {name}",
                )
                for quantile, name in ((0.5, "median"), (0.9, "1 in 10"), (0.99, "1 in 100"))
            ),
        ),
        Panel(
            title="How are waits spread?",
            kind="heatmap",
            unit="s",
            about="How many batches kept their reader waiting for how long, over time. One dark band: all wait alike. "
            "Two: some batches are slow, or some workers.",
            queries=(
                Query("sum by (le) (increase(stoker_data_wait_seconds_bucket{@trainer}[$__rate_interval]))", "{{le}}"),
            ),
        ),
        Panel(
            title="What would it gain?",
            unit="percentunit",
            about="How much faster each stream would be with loaders without an end, one worker more, or twice the "
            "window, by the model that names the limit. Absent where the model does not reproduce the present rate.",
            queries=(Query("stoker_gain_ratio{@stream}", "{{stream}}: {{more}}"),),
        ),
        Panel(
            title="Are batches ready ahead of need?",
            unit="none",
            stacked=True,
            about="Slots of all trainers by state. offered: ready. lent: with workers. out: with the consumer. "
            "None offered: loaders are slower than the trainers. All out: the consumer keeps batches, raise "
            "prefetch_bytes.",
            queries=(Query("sum by (stream, state) (stoker_slots{@trainer})", "{{stream}}: {{state}}"),),
        ),
        Panel(
            title="Are batches staged where steps take them?",
            unit="none",
            about="Batches that each trainer's framework or device has, and that are not trained on yet. None, while "
            "batches are offered and steps wait: handing over is slow.",
            queries=(Query("stoker_staged_batches{@trainer}", "{{trainer}}, rank {{rank}}"),),
        ),
    ),
)

#: The whole dashboard.
ROWS = (_GLANCE, _HEALTH, _WAITING, *DETAILS)
