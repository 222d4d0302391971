"""What the dashboard of a job asks about its workers, its data and its troubles; `job_questions` comes before."""

from __future__ import annotations

from monitoring.grafana.panels import Panel, Query, Row

__all__ = ["DETAILS"]

_WORKERS = Row(
    "Are the workers at their limit?",
    (
        Panel(
            title="How busy is each worker?",
            runbook="StokerWorkerSlow",
            unit="percentunit",
            most=1,
            about="Share of time that its building thread is busy. Near 100 % while trainers wait: add workers.",
            queries=(Query("stoker:worker_busy:ratio{@worker}", "{{worker}}"),),
        ),
        Panel(
            title="How fast does each worker build?",
            unit="suffix:/s",
            about="Batches a second. One far below the others while wants wait there: see the runbook.",
            queries=(
                Query("sum by (worker) (rate(stoker_built_batches_total{@build}[$__rate_interval]))", "{{worker}}"),
            ),
            runbook="StokerWorkerSlow",
        ),
        Panel(
            title="Which phase takes the CPU?",
            unit="none",
            stacked=True,
            about="CPU cores in use by phase, over all workers. Far below the time that it takes: it waits, for "
            "storage or for a host that is full.",
            queries=(
                Query(
                    "sum by (stream, phase) (rate(stoker_build_cpu_seconds_total{@build}[$__rate_interval]))",
                    "{{stream}}: {{phase}}",
                ),
            ),
            runbook="StokerHostStarved",
        ),
        Panel(
            title="How long do wants queue?",
            unit="s",
            about="Median, and the slowest want in ten, from its arrival at a worker until its samples are read. Long "
            "while workers are idle: their readers are the limit.",
            queries=tuple(
                Query(
                    f"histogram_quantile({quantile}, sum by (le, stream) "
                    "(rate(stoker_want_queue_seconds_bucket{@build}[$__rate_interval])))",
                    f"{{{{stream}}}}: {name}",
                )
                for quantile, name in ((0.5, "median"), (0.9, "1 in 10"))
            ),
        ),
        Panel(
            title="Where does building time go?",
            unit="none",
            stacked=True,
            about="Busy threads by phase, over all workers. plan_and_read runs ahead in threads of its own; if it is "
            "the largest, storage is slow.",
            queries=(
                Query(
                    "sum by (stream, phase) (rate(stoker_build_seconds_total{@build}[$__rate_interval]))",
                    "{{stream}}: {{phase}}",
                ),
            ),
        ),
        Panel(
            title="Do wants queue up?",
            unit="none",
            about="Wants that wait in each worker, and those that it builds or reads ahead for (at most 4).",
            queries=(
                Query("stoker_wants_waiting{@worker}", "{{worker}}: waiting"),
                Query("stoker_wants_building{@worker}", "{{worker}}: building"),
            ),
        ),
        Panel(
            title="How many bytes flow?",
            unit="Bps",
            about="Payload, padding included, over all processes.",
            queries=(
                Query(
                    "sum by (stream) (rate(stoker_built_bytes_total{@build}[$__rate_interval]))", "built for {{stream}}"
                ),
                Query(
                    "sum by (stream) (rate(stoker_read_bytes_total{@trainer}[$__rate_interval]))",
                    "read from {{stream}}",
                ),
            ),
        ),
        Panel(
            title="Does the network keep up?",
            unit="bytes",
            about="Built batches that are still being sent by TCP. Near queue_bytes: the network or a trainer is the "
            "bottleneck.",
            queries=(Query("stoker_unsent_bytes{@worker}", "{{worker}}"),),
        ),
        Panel(
            title="What do the processes cost?",
            unit="none",
            about="CPU cores in use by role.",
            queries=(
                Query("sum by (role) (rate(process_cpu_seconds_total{@job}[$__rate_interval]))", "{{role}} cores"),
            ),
        ),
        Panel(
            title="Does memory stay within bounds?",
            unit="bytes",
            about="Resident memory of each process; a trainer's includes its model.",
            queries=(Query("process_resident_memory_bytes{@job}", "{{instance}}"),),
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
            queries=(Query("stoker:cells:ratio{@stream}", "{{stream}}: {{kind}}"),),
        ),
        Panel(
            title="How much of what the trainers read is padding?",
            unit="percentunit",
            most=1,
            about="Share of the bytes of padded tensors that belong to no sample.",
            queries=(
                Query(
                    'sum by (stream) (rate(stoker_padded_bytes_total{@trainer, kind!="sample"}[5m]))'
                    " / sum by (stream) (rate(stoker_padded_bytes_total{@trainer}[5m]))",
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
                Query(
                    "sum by (stream, kind) (rate(stoker_read_rows_total{@trainer}[$__rate_interval]))",
                    "{{stream}}: {{kind}}",
                ),
            ),
        ),
        Panel(
            title="Which samples could not be used, and why?",
            runbook="StokerSamplesMasked",
            unit="none",
            about="Masked so far, by reason, counted each time. The quarantine log names them.",
            queries=(
                Query("sum by (reason) (stoker_masked_samples_total{@worker})", "{{reason}}"),
                Query("sum by (stream) (stoker_culprit_samples{@stream})", "{{stream}}: kill their decoder"),
                Query(
                    "sum by (stream, key) (stoker_not_finite_samples_total{@build})",
                    "{{stream}}: {{key}} is NaN or infinite",
                ),
            ),
        ),
        Panel(
            title="Which batches took the slow way, and why?",
            unit="none",
            about="Built sample by sample although they could be built at once. bad_sample is explained by a masked "
            "one; defect is Stoker's own: the worker's log has a traceback.",
            queries=(Query("sum by (reason) (stoker_fallbacks_total{@worker})", "{{reason}}"),),
        ),
        Panel(
            title="At which batches did trainers fail, and why?",
            unit="none",
            about="Lost tries in queue mode so far, by the reason that the trainer gave. A batch that fails too often "
            "is given up: `loader-server status` names it.",
            queries=(
                Query(
                    "sum by (stream, work, reason) (stoker_failed_tries_total{@stream})",
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
                    'sum by (stream) (rate(stoker_samples_total{@build, kind="kept"}[$__rate_interval])) / '
                    "sum by (stream) (rate(stoker_samples_total{@build}[$__rate_interval]))",
                    "{{stream}}: samples, in the cache",
                ),
                Query(
                    "sum by (stream) (rate(stoker_taken_batches_total{@build}[$__rate_interval])) / "
                    "sum by (stream) (rate(stoker_built_batches_total{@build}[$__rate_interval]))",
                    "{{stream}}: batches, from another worker",
                ),
            ),
        ),
        Panel(
            title="Do workers wait for remote files?",
            runbook="StokerRemoteSlow",
            unit="percentunit",
            about="Share of the needed blocks and files that the machine's cache lacked. Many after the first minute: "
            "the store is slower than the trainers, or remote_cache_bytes is too small to look ahead.",
            queries=(
                Query(
                    'sum by (instance) (rate(stoker_remote_blocks_total{@worker, kind="waited"}[$__rate_interval])) / '
                    "clamp_min(sum by (instance) (rate(stoker_remote_blocks_total{@worker}[$__rate_interval])), 0.001)",
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
                Query(
                    "sum by (instance) (rate(stoker_remote_fetched_bytes_total{@worker}[$__rate_interval]))",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            title="Do remote stores fail?",
            unit="suffix:/s",
            about="Requests that failed and were made again. After five attempts the job stops, naming the file.",
            queries=(
                Query(
                    "sum by (instance) (rate(stoker_remote_retries_total{@worker}[$__rate_interval]))", "{{instance}}"
                ),
            ),
        ),
        Panel(
            title="Which samples take no part, and why?",
            runbook="StokerSamplesLeftOut",
            unit="none",
            about="Of the index: all samples, and those left out by the plan's settings or as bad rows.",
            queries=(
                Query("stoker_samples{@stream}", "{{stream}}: in the index"),
                Query("stoker_left_out_samples{@stream}", "{{stream}}: {{reason}}"),
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
                Query(f"sum by (stream) (rate({name}{{@trainer}}[$__rate_interval]))", f"{{{{stream}}}}: {what}")
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
            runbook="StokerBatchRejected",
            unit="suffix:/s",
            about="stale: another answer came first. rejected: wrong bytes, look at that machine. retracted, "
            "copied: too few slots. unsealed: a worker's second port is shut.",
            queries=tuple(
                Query(f"sum by (stream) (rate({name}{{@trainer}}[$__rate_interval]))", f"{{{{stream}}}}: {what}")
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
            queries=(Query("stoker_worker_silent_seconds{@worker}", "{{worker}}"),),
        ),
        Panel(
            title="Do processes come and go?",
            runbook="StokerWorkersFlapping",
            unit="none",
            about="In the last hour: restarts, attaches, ranks taken over, workers lost, silences as trainers see "
            "them.",
            queries=(
                Query("sum by (role) (changes(process_start_time_seconds{@job}[1h]))", "{{role}} restarts"),
                Query("sum by (role) (increase(stoker_restarts_total{@job}[1h]))", "{{role}} restarts by the run"),
                Query("increase(stoker_attaches_total{@job}[1h])", "starts of trainers"),
                Query("increase(stoker_reattaches_total{@job}[1h])", "reattaches"),
                Query("increase(stoker_superseded_trainers_total{@job}[1h])", "ranks taken over"),
                Query("increase(stoker_workers_gone_total{@job}[1h])", "workers lost"),
                Query("sum(increase(stoker_suspected_workers_total{@trainer}[1h]))", "silences"),
            ),
        ),
        Panel(
            title="Is anyone refused?",
            runbook="StokerRefused",
            unit="none",
            about="In the last hour: trainers and workers refused, wants refused or stale, frames that are not "
            "messages of ours, messages that newer ones overtook, answers that could not be sent, writes to the "
            "journal that failed; and what is missing in the journal now.",
            queries=(
                Query("increase(stoker_refusals_total{@job}[1h])", "members refused"),
                Query("sum(increase(stoker_refused_wants_total{@worker}[1h]))", "wants refused"),
                Query("sum(increase(stoker_stale_wants_total{@worker}[1h]))", "stale wants"),
                Query("sum by (role) (increase(stoker_garbage_messages_total{@job}[1h]))", "garbage at {{role}}"),
                Query("increase(stoker_stale_messages_total{@job}[1h])", "stale members"),
                Query("increase(stoker_unsendable_messages_total{@job}[1h])", "answers not sent"),
                Query("increase(stoker_journal_errors_total{@job}[1h])", "journal errors"),
                Query("stoker_journal_waiting_facts{@job}", "facts not in the journal"),
            ),
        ),
        Panel(
            title="Who connects to the ports?",
            unit="none",
            about="Open connections of each server; in the last hour, connections by what became of them, messages "
            "from keys of the wrong role, and how often new connections were stopped because descriptors ran short.",
            queries=(
                Query("sum by (role, port) (stoker_connections{@job})", "open at {{role}}, {{port}}"),
                Query(
                    "sum by (role, kind) (increase(stoker_connection_changes_total{@job}[1h]))",
                    "{{kind}} at {{role}}",
                ),
                Query("sum by (role) (increase(stoker_wrong_roles_total{@job}[1h]))", "wrong role at {{role}}"),
                Query("sum by (role) (increase(stoker_doors_shut_total{@job}[1h]))", "doors shut at {{role}}"),
            ),
        ),
    ),
)

DETAILS = (_WORKERS, _DATA, _TROUBLE)
