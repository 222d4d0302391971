"""What the dashboard of a fleet asks: all jobs that this Prometheus sees, a line each, and where their workers are."""

from __future__ import annotations

from monitoring.grafana.panels import Panel, Query, Row

__all__ = ["FLEET_ROWS"]

_GOOD, _ODD, _BAD = "green", "orange", "red"

#: How long a trainer waits of each second, as its loop tells it, or else its reader.
_WAITS = (
    "clamp_max(rate(stoker_step_wait_seconds_total{@any}[$__rate_interval])"
    " or rate(stoker_data_wait_seconds_sum{@any}[$__rate_interval]), 1)"
)
#: The host is what a worker's name has before its number.
_BY_HOST = 'label_replace(up{@any, role="worker"} == 1, "host", "$1", "worker", "(.+)-[0-9]+")'

FLEET_ROWS = (
    Row(
        "Which jobs are there, and how are they?",
        (
            Panel(
                title="Which job needs a look?",
                kind="table",
                unit="none",
                joined="job",
                units={"waiting": "percentunit", "steps/s": "none", "left": "s"},
                size=(24, 9),
                about="A line for each job. Waiting above 5 % costs accelerators, and the limit says where to look: "
                "that of the stream that waits longest.",
                queries=(
                    Query(
                        "topk by (job) (1, (stoker_limit{@any} == 1)"
                        " * on (job, stream) group_left () (1 + stoker_waited_ratio{@any}))",
                        "limit",
                    ),
                    Query("max by (job) (stoker_waited_ratio{@any})", "waiting"),
                    Query(
                        'sum by (job) (rate(stoker_trained_rounds_total{@any, rank="none"}[$__rate_interval]))'
                        " or max by (job) (rate(stoker_trained_rounds_total{@any}[$__rate_interval]))",
                        "steps/s",
                    ),
                    Query(
                        "max by (job) ((stoker_epoch_batches{@any} - stoker_trained_batch_number{@any})"
                        " / on (job, stream) (stoker:read_batches:rate{@any} > 0))",
                        "left",
                    ),
                    Query(
                        'count by (job) (ALERTS{@any, alertstate="firing"}) or 0 * max by (job) (stoker_workers{@any})',
                        "alerts",
                    ),
                    Query("max by (job) (stoker_workers{@any})", "workers"),
                    Query(
                        'topk by (job) (1, count by (job, version) (stoker_build_info{@any, role="coordinator"}))',
                        "version",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Where does the money go?",
        (
            Panel(
                title="How many accelerators wait for data?",
                unit="none",
                stacked=True,
                about="Seconds that trainers lose to waiting in each second, over all trainers of a job: 1 is one "
                "accelerator that idles.",
                queries=(Query(f"sum by (job) ({_WAITS})", "{{job}}"),),
                runbook="StokerDataStall",
                size=(12, 8),
            ),
            Panel(
                title="How many accelerator seconds were lost?",
                kind="stat",
                unit="s",
                thresholds=((3600, _ODD), (36_000, _BAD)),
                about="All that trainers waited within the time that is shown, by job.",
                queries=(
                    Query(
                        "sum by (job) (increase(stoker_step_wait_seconds_total{@any}[$__range])"
                        " or increase(stoker_data_wait_seconds_sum{@any}[$__range]))",
                        "{{job}}",
                    ),
                ),
                runbook="StokerDataStall",
                size=(12, 8),
            ),
        ),
    ),
    Row(
        "Where are the workers?",
        (
            Panel(
                title="How many workers has each host, and for which job?",
                unit="none",
                stacked=True,
                about="Workers that answer, by host and job.",
                queries=(Query(f"count by (host, job) ({_BY_HOST})", "{{host}}: {{job}}"),),
                size=(12, 8),
            ),
            Panel(
                title="Which jobs lack workers, and which have too many?",
                unit="none",
                about="Workers that a job could use less those that it has: above 0 trainers wait for more.",
                queries=(
                    Query(
                        "max by (job) (stoker_workers_wanted{@any}) - max by (job) (stoker_workers{@any})", "{{job}}"
                    ),
                ),
                runbook="StokerWorkersMissing",
                size=(12, 8),
            ),
            Panel(
                title="How busy are the workers of each host?",
                unit="percentunit",
                most=1,
                about="Share of time that building threads are busy, on average over a host's workers.",
                queries=(
                    Query(
                        'avg by (host) (label_replace(stoker:worker_busy:ratio{@any}, "host", "$1", "worker", '
                        '"(.+)-[0-9]+"))',
                        "{{host}}",
                    ),
                ),
                size=(12, 8),
            ),
            Panel(
                title="Which host starves its workers?",
                unit="percentunit",
                about="Share of time that workers could run and got no CPU, and that processes of the host waited for "
                "memory.",
                queries=(Query("stoker:starved:ratio{@any}", "{{host}}: {{resource}}"),),
                runbook="StokerHostStarved",
                size=(12, 8),
            ),
        ),
    ),
)
