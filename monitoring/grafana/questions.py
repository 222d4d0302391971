"""What the dashboard of a job asks: panels titled with the questions that a user has, in the order to ask them in.

Rules: each query names the job, so that the dashboard shows one job; ratios are shown in per cent; every declared
metric is used in a query here or in a rule. The JSON that Grafana wants is made in `dashboard`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ROWS", "Panel", "Query", "Row"]


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression, and the legend of its curves."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A question, its answer over time, and how to read it."""

    title: str
    unit: str
    about: str
    queries: tuple[Query, ...]
    stacked: bool = False
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that belong together."""

    title: str
    panels: tuple[Panel, ...]


_HEALTH = Row(
    "Is the job well?",
    (
        Panel(
            title="Is the accelerator waiting for data?",
            unit="percentunit",
            most=1,
            about="Share of time that each trainer waits, as the training loop reports it (FeedCheckpoint does); "
            "otherwise as the reader of the feed sees it, which under tf.data is an upper bound. Above 5 %: go on "
            "with the next row.",
            queries=(Query('stoker:wait:ratio{job="$job"}', "{{trainer}}, rank {{rank}}"),),
        ),
        Panel(
            title="How far is training?",
            unit="percentunit",
            most=1,
            about="Share of the epoch that the slowest rank has trained on. In queue mode: of the first epoch that is "
            "not done, the share that all trainers together have done.",
            queries=(Query('stoker:epoch:ratio{job="$job"}', "{{stream}}"),),
        ),
        Panel(
            title="Which epoch is it in, and does it move?",
            unit="none",
            about="Epochs count from 0. Moves: in how many scrapes of the last ten minutes the cursor had moved, or "
            "batches of a queue were done; 0 raises an alert.",
            queries=(
                Query('stoker_trained_epoch{job="$job"}', "epoch of {{stream}}"),
                Query('stoker:progress:changes10m{job="$job"}', "moves of {{stream}}"),
            ),
        ),
        Panel(
            title="In queue mode, what became of the batches?",
            unit="none",
            stacked=True,
            about="Batches of the epochs under way: open (nobody has them), running (trainers have them), done, and "
            "given up, of all epochs. Open for long while nothing runs: no trainer asks for more.",
            queries=(
                Query('sum by (stream, work, state) (stoker_leases{job="$job"})', "{{stream}}, {{work}}: {{state}}"),
            ),
        ),
        Panel(
            title="Does the model learn?",
            unit="none",
            about="Loss and metrics of the last epoch and of evaluations, over all ranks, if the trainers report them.",
            queries=(Query('stoker_result{job="$job"}', "{{result}} of {{stream}}"),),
        ),
        Panel(
            title="Who is there?",
            unit="none",
            about="Workers and trainers as the coordinator knows them, and processes whose metrics can be scraped.",
            queries=(
                Query('stoker_workers{job="$job"}', "workers"),
                Query('stoker_workers_wanted{job="$job"}', "workers wanted"),
                Query('stoker_trainers{job="$job"}', "trainers of {{stream}}"),
                Query('sum by (role) (up{job="$job"})', "{{role}} processes"),
            ),
        ),
        Panel(
            title="How fast are batches built and read?",
            unit="suffix:/s",
            about="Batches per second. Built far above read: batches are thrown away, or trainers fill their slots.",
            queries=(
                Query('stoker:built_batches:rate{job="$job"}', "built for {{stream}}"),
                Query('stoker:read_batches:rate{job="$job"}', "read from {{stream}}"),
            ),
        ),
        Panel(
            title="How fast does each trainer train?",
            unit="suffix:/s",
            about="Rounds per second. In lockstep all ranks are as fast as the slowest. In queue mode a round is a "
            "batch, nobody waits for others, and the job is as fast as all together.",
            queries=(Query('rate(stoker_trained_rounds_total{job="$job"}[1m])', "{{trainer}}, rank {{rank}}"),),
        ),
    ),
)

_WAITING = Row(
    "What do trainers wait for?",
    (
        Panel(
            title="What limits the job?",
            unit="none",
            about="What limits each stream, as `loader-server status` says; docs/troubles.md has what helps.",
            queries=(Query('stoker_limit{job="$job"} == 1', "{{stream}}: {{limit}}"),),
        ),
        Panel(
            title="What would help?",
            unit="percentunit",
            about="Part by which batches a second would grow with endless loaders, one worker more, or twice the "
            "window; no line while that is unknown.",
            queries=(Query('stoker_gain_ratio{job="$job"}', "{{stream}}: {{more}}"),),
        ),
        Panel(
            title="Who is the bottleneck, the loaders or the trainers?",
            unit="percentunit",
            about="Share of its time that the longest-waiting trainer waits for data, as trainers tell the "
            "coordinator. From 5 % on the loaders are the bottleneck.",
            queries=(Query('stoker_waited_ratio{job="$job"}', "{{stream}}"),),
        ),
        Panel(
            title="Is it building, transfer or conversion?",
            unit="percentunit",
            stacked=True,
            about="Share of the reader's time. build: add workers. transfer: the network, or wants that queue at "
            "workers. conversion: views and copies in the trainer.",
            queries=(
                Query(
                    'avg by (stream, part) (rate(stoker_data_wait_split_seconds_total{job="$job"}[1m]))',
                    "{{stream}}: {{part}}",
                ),
            ),
        ),
        Panel(
            title="What does training spend its time on?",
            unit="percentunit",
            stacked=True,
            about="Share of time in steps, in checkpoints, and in tracing the step before it begins, where the loop "
            "says so (trainer-client train and FeedCheckpoint do). Retraced: steps traced in the midst of training, "
            "whose shape was not planned.",
            queries=(
                Query(
                    'avg by (stream, phase) (rate(stoker_phase_seconds_total{job="$job"}[1m]))', "{{stream}}: {{phase}}"
                ),
                Query('sum by (stream) (increase(stoker_retraces_total{job="$job"}[10m]))', "{{stream}}: retraced"),
            ),
        ),
        Panel(
            title="Who is in an elastic run?",
            unit="short",
            about="Trainers that train, and such that wait for a place: too few are there, or there are spares. "
            "Changes: worlds that were over because trainers came or went.",
            queries=(
                Query('sum by (stream, kind) (stoker_elastic_trainers{job="$job"})', "{{stream}}: {{kind}}"),
                Query('sum by (stream) (increase(stoker_world_changes_total{job="$job"}[10m]))', "{{stream}}: changes"),
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
                    'sum by (le, stream) (rate(stoker_data_wait_seconds_bucket{job="$job"}[5m])))',
                    f"{{{{stream}}}}: {name}",
                )
                for quantile, name in ((0.5, "median"), (0.9, "1 in 10"), (0.99, "1 in 100"))
            ),
        ),
        Panel(
            title="Are batches ready ahead of need?",
            unit="none",
            stacked=True,
            about="Slots of all trainers by state. offered: ready. lent: with workers. out: with the consumer. "
            "None offered: loaders are slower than the trainers. All out: the consumer keeps batches, raise "
            "prefetch_bytes.",
            queries=(Query('sum by (stream, state) (stoker_slots{job="$job"})', "{{stream}}: {{state}}"),),
        ),
        Panel(
            title="Are batches staged where steps take them?",
            unit="none",
            about="Batches that each trainer's framework or device has, and that are not trained on yet. None, while "
            "batches are offered and steps wait: handing over is slow.",
            queries=(Query('stoker_staged_batches{job="$job"}', "{{trainer}}, rank {{rank}}"),),
        ),
    ),
)

_WORKERS = Row(
    "Are the workers at their limit?",
    (
        Panel(
            title="How busy is each worker?",
            unit="percentunit",
            most=1,
            about="Share of time that its building thread is busy. Near 100 % while trainers wait: add workers.",
            queries=(Query('stoker:worker_busy:ratio{job="$job"}', "{{worker}}"),),
        ),
        Panel(
            title="Where does building time go?",
            unit="none",
            stacked=True,
            about="Busy threads by phase, over all workers. plan_and_read runs ahead in threads of its own; if it is "
            "the largest, storage is slow.",
            queries=(
                Query(
                    'sum by (stream, phase) (rate(stoker_build_seconds_total{job="$job"}[1m]))', "{{stream}}: {{phase}}"
                ),
            ),
        ),
        Panel(
            title="Do wants queue up?",
            unit="none",
            about="Wants that wait in each worker, and those that it builds or reads ahead for (at most 4).",
            queries=(
                Query('stoker_wants_waiting{job="$job"}', "{{worker}}: waiting"),
                Query('stoker_wants_building{job="$job"}', "{{worker}}: building"),
            ),
        ),
        Panel(
            title="How many bytes flow?",
            unit="Bps",
            about="Payload, padding included, over all processes.",
            queries=(
                Query('sum by (stream) (rate(stoker_built_bytes_total{job="$job"}[1m]))', "built for {{stream}}"),
                Query('sum by (stream) (rate(stoker_read_bytes_total{job="$job"}[1m]))', "read from {{stream}}"),
            ),
        ),
        Panel(
            title="Does the network keep up?",
            unit="bytes",
            about="Built batches that are still being sent by TCP. Near queue_bytes: the network or a trainer is the "
            "bottleneck.",
            queries=(Query('stoker_unsent_bytes{job="$job"}', "{{worker}}"),),
        ),
        Panel(
            title="What do the processes cost?",
            unit="none",
            about="CPU cores in use by role.",
            queries=(Query('sum by (role) (rate(process_cpu_seconds_total{job="$job"}[1m]))', "{{role}} cores"),),
        ),
        Panel(
            title="Does memory stay within bounds?",
            unit="bytes",
            about="Resident memory of each process; a trainer's includes its model.",
            queries=(Query('process_resident_memory_bytes{job="$job"}', "{{instance}}"),),
        ),
    ),
)

_DATA = Row(
    "Is accelerator time spent on real data?",
    (
        Panel(
            title="How much of what is built is padding?",
            unit="percentunit",
            most=1,
            stacked=True,
            about="Shares of cells of the bucketed key. padding: raise shapes. masked: rows without a sample.",
            queries=(Query('stoker:cells:ratio{job="$job"}', "{{stream}}: {{kind}}"),),
        ),
        Panel(
            title="How much of what the trainers read is padding?",
            unit="percentunit",
            most=1,
            about="Share of the bytes of padded tensors that belong to no sample.",
            queries=(
                Query(
                    'sum by (stream) (rate(stoker_padded_bytes_total{job="$job", kind!="sample"}[5m]))'
                    ' / sum by (stream) (rate(stoker_padded_bytes_total{job="$job"}[5m]))',
                    "{{stream}}",
                ),
            ),
        ),
        Panel(
            title="How many rows hold a sample?",
            unit="suffix:/s",
            about="Rows per second that trainers read: sample, masked (its sample could not be used), vacant (none "
            "was planned).",
            queries=(
                Query('sum by (stream, kind) (rate(stoker_read_rows_total{job="$job"}[1m]))', "{{stream}}: {{kind}}"),
            ),
        ),
        Panel(
            title="Which samples could not be used, and why?",
            unit="none",
            about="Masked so far, by reason, counted each time. The quarantine log names them.",
            queries=(
                Query('sum by (reason) (stoker_masked_samples_total{job="$job"})', "{{reason}}"),
                Query('sum by (stream) (stoker_culprit_samples{job="$job"})', "{{stream}}: kill their decoder"),
                Query(
                    'sum by (stream, key) (stoker_not_finite_samples_total{job="$job"})',
                    "{{stream}}: {{key}} is NaN or infinite",
                ),
            ),
        ),
        Panel(
            title="Which batches took the slow way, and why?",
            unit="none",
            about="Built sample by sample although they could be built at once. bad_sample is explained by a masked "
            "one; defect is Stoker's own: the worker's log has a traceback.",
            queries=(Query('sum by (reason) (stoker_fallbacks_total{job="$job"})', "{{reason}}"),),
        ),
        Panel(
            title="At which batches did trainers fail, and why?",
            unit="none",
            about="Lost tries in queue mode so far, by the reason that the trainer gave. A batch that fails too often "
            "is given up: `loader-server status` names it.",
            queries=(
                Query(
                    'sum by (stream, work, reason) (stoker_failed_tries_total{job="$job"})',
                    "{{stream}} ({{work}}): {{reason}}",
                ),
            ),
        ),
        Panel(
            title="How much was made already?",
            unit="percentunit",
            about="Share of the samples that the feature cache had. Few after the first epoch: raise "
            "feature_cache_bytes, or move transforms that draw behind the others. And of the batches that another "
            "worker had built: few although two jobs share means that one lags, or that they differ.",
            queries=(
                Query(
                    'sum by (stream) (rate(stoker_samples_total{job="$job", kind="kept"}[1m])) / '
                    'sum by (stream) (rate(stoker_samples_total{job="$job"}[1m]))',
                    "{{stream}}: samples, in the cache",
                ),
                Query(
                    'sum by (stream) (rate(stoker_taken_batches_total{job="$job"}[1m])) / '
                    'sum by (stream) (rate(stoker_built_batches_total{job="$job"}[1m]))',
                    "{{stream}}: batches, from another worker",
                ),
            ),
        ),
        Panel(
            title="Do workers wait for remote files?",
            unit="percentunit",
            about="Share of the needed blocks and files that the machine's cache lacked. Many after the first minute: "
            "the store is slower than the trainers, or remote_cache_bytes is too small to look ahead.",
            queries=(
                Query(
                    'sum by (instance) (rate(stoker_remote_blocks_total{job="$job", kind="waited"}[1m])) / '
                    'clamp_min(sum by (instance) (rate(stoker_remote_blocks_total{job="$job"}[1m])), 0.001)',
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            title="How much comes from remote stores?",
            unit="Bps",
            about="Bytes that came into the machines' caches. More in all than the data: the caches hold less than a "
            "window needs.",
            queries=(
                Query('sum by (instance) (rate(stoker_remote_fetched_bytes_total{job="$job"}[1m]))', "{{instance}}"),
            ),
        ),
        Panel(
            title="Do remote stores fail?",
            unit="suffix:/s",
            about="Requests that failed and were made again. After five attempts the job stops, naming the file.",
            queries=(Query('sum by (instance) (rate(stoker_remote_retries_total{job="$job"}[1m]))', "{{instance}}"),),
        ),
        Panel(
            title="Which samples take no part, and why?",
            unit="none",
            about="Of the index: all samples, and those left out by the plan's settings or as bad rows.",
            queries=(
                Query('stoker_samples{job="$job"}', "{{stream}}: in the index"),
                Query('stoker_left_out_samples{job="$job"}', "{{stream}}: {{reason}}"),
            ),
        ),
    ),
)

_TROUBLE = Row(
    "Is anything going wrong?",
    (
        Panel(
            title="Are wants asked more than once?",
            unit="suffix:/s",
            about="asked: all. again: a worker was silent, died or refused. hedged: the batch needed next took long. "
            "lost: the worker never got it.",
            queries=tuple(
                Query(f'sum by (stream) (rate({name}{{job="$job"}}[1m]))', f"{{{{stream}}}}: {what}")
                for name, what in (
                    ("stoker_asked_wants_total", "asked"),
                    ("stoker_asked_again_wants_total", "again"),
                    ("stoker_hedged_wants_total", "hedged"),
                    ("stoker_lost_wants_total", "lost"),
                )
            ),
        ),
        Panel(
            title="Are batches thrown away, copied, or sent the slower way?",
            unit="suffix:/s",
            about="stale: another answer came first. rejected: wrong bytes, look at that machine. retracted, "
            "copied: too few slots. unsealed: a worker's second port is shut.",
            queries=tuple(
                Query(f'sum by (stream) (rate({name}{{job="$job"}}[1m]))', f"{{{{stream}}}}: {what}")
                for name, what in (
                    ("stoker_stale_batches_total", "stale"),
                    ("stoker_rejected_batches_total", "rejected"),
                    ("stoker_retracted_batches_total", "retracted"),
                    ("stoker_copied_batches_total", "copied"),
                    ("stoker_unsealed_batches_total", "unsealed"),
                )
            ),
        ),
        Panel(
            title="Is a worker silent?",
            unit="s",
            about="Time since each worker's last heartbeat, as the coordinator heard it.",
            queries=(Query('stoker_worker_silent_seconds{job="$job"}', "{{worker}}"),),
        ),
        Panel(
            title="Do processes come and go?",
            unit="none",
            about="In the last hour: restarts, attaches, ranks taken over, workers lost, silences as trainers see "
            "them.",
            queries=(
                Query('sum by (role) (changes(process_start_time_seconds{job="$job"}[1h]))', "{{role}} restarts"),
                Query('increase(stoker_attaches_total{job="$job"}[1h])', "attaches"),
                Query('increase(stoker_superseded_trainers_total{job="$job"}[1h])', "ranks taken over"),
                Query('increase(stoker_workers_gone_total{job="$job"}[1h])', "workers lost"),
                Query('sum(increase(stoker_suspected_workers_total{job="$job"}[1h]))', "silences"),
            ),
        ),
        Panel(
            title="Is anyone refused?",
            unit="none",
            about="In the last hour: trainers and workers refused, wants refused or stale, frames that are not "
            "messages of ours, messages that newer ones overtook, answers that could not be sent, writes to the "
            "journal that failed; and what is missing in the journal now.",
            queries=(
                Query('increase(stoker_refusals_total{job="$job"}[1h])', "members refused"),
                Query('sum(increase(stoker_refused_wants_total{job="$job"}[1h]))', "wants refused"),
                Query('sum(increase(stoker_stale_wants_total{job="$job"}[1h]))', "stale wants"),
                Query('sum by (role) (increase(stoker_garbage_messages_total{job="$job"}[1h]))', "garbage at {{role}}"),
                Query('increase(stoker_stale_messages_total{job="$job"}[1h])', "stale members"),
                Query('increase(stoker_unsendable_messages_total{job="$job"}[1h])', "answers not sent"),
                Query('increase(stoker_journal_errors_total{job="$job"}[1h])', "journal errors"),
                Query('stoker_journal_waiting_facts{job="$job"}', "facts not in the journal"),
            ),
        ),
        Panel(
            title="Who connects to the ports?",
            unit="none",
            about="Open connections of each server; in the last hour, connections by what became of them, messages "
            "from keys of the wrong role, and how often new connections were stopped because descriptors ran short.",
            queries=(
                Query('sum by (role, port) (stoker_connections{job="$job"})', "open at {{role}}, {{port}}"),
                Query(
                    'sum by (role, kind) (increase(stoker_connection_changes_total{job="$job"}[1h]))',
                    "{{kind}} at {{role}}",
                ),
                Query('sum by (role) (increase(stoker_wrong_roles_total{job="$job"}[1h]))', "wrong role at {{role}}"),
                Query('sum by (role) (increase(stoker_doors_shut_total{job="$job"}[1h]))', "doors shut at {{role}}"),
            ),
        ),
    ),
)

#: The whole dashboard.
ROWS = (_HEALTH, _WAITING, _WORKERS, _DATA, _TROUBLE)
