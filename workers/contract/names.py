"""Names that processes share: task, queue, and every Redis key with its type and lifetime. No I/O.

`KEYS` is the whole table: a key that is not in it does not exist (a test compares it with a live Redis). The run's name
is the hash tag, so that all keys of a run lie in one slot of a Redis Cluster and one script may touch them.
"""

import re
from dataclasses import dataclass

TASK_GENERATE = "fleet.generate"
QUEUE = "fleet.batches"

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Of a run that a person names."""
_REPAIR_NAME = re.compile(r"(.+)~r([0-9]{2})")
MAX_REPAIRS = 99

PRIORITY_LEVELS = 10
DEFAULT_PRIORITY = 4

BEAT_TTL_S = 14 * 86_400.0
FINISHED_TTL_S = 30 * 86_400.0
"""Counters of a complete run are kept this long for `producer status`; afterwards they are rebuilt from the store."""
WORKER_TTL_S = 30.0
LOCK_TTL_S = 30.0
SWEEP_TTL_S = 10.0


@dataclass(frozen=True)
class Key:
    """One row of the table: Redis type, lifetime in seconds (None: permanent while the run is not complete), meaning."""

    pattern: str
    type: str
    ttl_s: float | None
    meaning: str


KEYS = (
    Key("fleet:runs", "zset", None, "run → time of its first enqueue, UNIX seconds; complete runs leave it"),
    Key("fleet:worker:<worker>", "hash", WORKER_TTL_S, "state and counters of one worker process, written by its beat"),
    Key("fleet:sweep", "string", SWEEP_TTL_S, "which worker sweeps for lost messages now"),
    Key("fleet:{<run>}:enqueue", "string", LOCK_TTL_S, "which producer enqueues this run now"),
    Key("fleet:{<run>}:state", "hash", None, "status, totals, priority, times, model asked for, model served, repairs"),
    Key("fleet:{<run>}:pushed", "string", None, "bitmap: a message of this batch was pushed"),
    Key("fleet:{<run>}:done", "string", None, "bitmap: this batch is committed"),
    Key("fleet:{<run>}:lease", "zset", None, "batch → end of its lease, Redis' own clock, milliseconds"),
    Key("fleet:{<run>}:owner", "hash", None, "batch → worker#attempt that holds the lease"),
    Key("fleet:{<run>}:attempts", "hash", None, "batch → claims so far, and :errors of ours; dropped at commit"),
    Key("fleet:{<run>}:lapses", "hash", None, "batch → leases that ended in a silent worker's hands; dropped at commit"),
    Key("fleet:{<run>}:parked", "hash", None, "batch → why no worker takes it: its message is not pushed again until resume"),
    Key("fleet:{<run>}:open", "set", None, "batches that have checkpoints"),
    Key("fleet:{<run>}:open:<batch>", "hash", None, "index → completion, the batch's tallies, d:<index>:<request> of deaths"),
    Key("fleet:{<run>}:counts", "hash", None, "completed, failed, tokens, shards, bytes"),
    Key("fleet:{<run>}:reasons", "hash", None, "failure reason → prompts"),
    Key("fleet:{<run>}:flags", "hash", None, "quality flag → prompts"),
    Key("fleet:{<run>}:workers", "hash", None, "worker name and :completed or :failed → prompts"),
    Key("fleet:{<run>}:series", "list", None, "totals over time, newest first, bounded length"),
    Key("fleet:{<run>}:predictions", "hash", None, "percent finished → time left as the aggregator saw it then"),
    Key("fleet:{<run>}:beat", "hash", BEAT_TTL_S, "time of the last beat of anybody, and until when nothing is reaped"),
)

RUNS = "fleet:runs"
SWEEP = "fleet:sweep"

SERIES_STEP_S = 2.0
SERIES_LENGTH = 1800
"""An hour of two-second samples."""


def worker_key(worker: str) -> str:
    """Key of one worker's hash; `worker` is its Celery node name."""
    return f"fleet:worker:{worker}"


@dataclass(frozen=True)
class RunKeys:
    """The Redis keys of one run."""

    run: str

    def _key(self, name: str) -> str:
        return f"fleet:{{{self.run}}}:{name}"

    @property
    def enqueue(self) -> str:
        """Lock of the producer that enqueues."""
        return self._key("enqueue")

    @property
    def state(self) -> str:
        """Status and totals of the run."""
        return self._key("state")

    @property
    def pushed(self) -> str:
        """Bitmap of batches with a pushed message."""
        return self._key("pushed")

    @property
    def done(self) -> str:
        """Bitmap of committed batches."""
        return self._key("done")

    @property
    def lease(self) -> str:
        """Leases by their end."""
        return self._key("lease")

    @property
    def owner(self) -> str:
        """Holder of each lease."""
        return self._key("owner")

    @property
    def attempts(self) -> str:
        """Claims of each batch that is not committed."""
        return self._key("attempts")

    @property
    def lapses(self) -> str:
        """Leases of each batch that nobody renewed."""
        return self._key("lapses")

    @property
    def parked(self) -> str:
        """Batches that wait for a person."""
        return self._key("parked")

    @property
    def open(self) -> str:
        """Set of batches with checkpoints."""
        return self._key("open")

    def checkpoints(self, batch: str) -> str:
        """Completions of an open batch, and its tallies."""
        return self._key(f"open:{batch}")

    @property
    def counts(self) -> str:
        """Totals of prompts, tokens, shards."""
        return self._key("counts")

    @property
    def reasons(self) -> str:
        """Failed prompts by reason."""
        return self._key("reasons")

    @property
    def flags(self) -> str:
        """Prompts by quality flag."""
        return self._key("flags")

    @property
    def workers(self) -> str:
        """Prompts by worker."""
        return self._key("workers")

    @property
    def series(self) -> str:
        """Totals over time."""
        return self._key("series")

    @property
    def predictions(self) -> str:
        """Time left, as it was seen at some shares of the run."""
        return self._key("predictions")

    @property
    def beat(self) -> str:
        """Last beat and grace."""
        return self._key("beat")

    def lasting(self) -> tuple[str, ...]:
        """Keys that live as long as the run does; they get `FINISHED_TTL_S` when it is complete."""
        return (
            self.state,
            self.pushed,
            self.done,
            self.lease,
            self.owner,
            self.attempts,
            self.lapses,
            self.parked,
            self.open,
            self.counts,
            self.reasons,
            self.flags,
            self.workers,
            self.series,
            self.predictions,
        )


def repair_name(run: str, number: int) -> str:
    """`my-run~r01`: a repair is a run of its own for queue and ledger, under a name that no person can give."""
    return f"{run}~r{number:02d}"


def parse_repair(run: str) -> tuple[str, int | None]:
    """The run that a person named, and the number of its repair, if it is one."""
    match = _REPAIR_NAME.fullmatch(run)
    return (match[1], int(match[2])) if match else (run, None)


def task_id(run: str, batch: str, nonce: str) -> str:
    """Id of one message, readable in Flower: `myrun.00000012.5f3a…`."""
    return f"{run}.{batch}.{nonce}"


def parse_task_id(value: str) -> tuple[str, str] | None:
    """Run and batch that a message id names, or None if it is none of ours."""
    parts = value.rsplit(".", 2)
    return (parts[0], parts[1]) if len(parts) == 3 else None


def broker_priority(priority: int, *, recovered: bool = False) -> int:
    """Kombu's priority (0 is served first) for ours (9 is served first). A recovered batch goes before its run's others."""
    return max(0, PRIORITY_LEVELS - 1 - priority - (1 if recovered else 0))
