"""Push the messages of a run: those batches that are neither done nor pushed, in order, no faster than the queue may grow."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import kombu.exceptions
import msgspec
import redis
from celery import Celery

from workers.broker import QUEUE_LISTS, broker_errors
from workers.contract import names
from workers.contract.broker_url import without_password
from workers.contract.errors import BrokerUnavailable
from workers.contract.names import RunKeys
from workers.contract.schema import Manifest
from workers.contract.settings import FleetSettings
from workers.publish import push

_SETTLE = (Path(__file__).parent / "settle.lua").read_text()
GROUP = 500
"""Messages that share one round trip; a crash doubles at most so many, which costs workers a look each."""
LOOK_AGAIN_S = 0.5


DEFAULT_MAX_QUEUED = 100_000
"""Batches: 60 MB in Redis, and 6.4 million prompts at the default batch size."""


@dataclass(frozen=True)
class Backpressure:
    """Wait when `high` batches wait in the queue, until there are `low`; so Redis does not grow with the length of a run."""

    high: int = DEFAULT_MAX_QUEUED

    @property
    def low(self) -> int:
        """Half of the high mark."""
        return self.high // 2

    def room(self, waiting: int, *, held: bool) -> int:
        """How many may be pushed now; 0 while held back.

        Args:
            waiting: Batches in the queue.
            held: It waits since the high mark was reached.
        """
        return max(0, self.high - waiting) if not held or waiting <= self.low else 0


def waiting_in_queue(client: "redis.Redis") -> int:
    """Batches of all runs that wait in the queue."""
    pipeline = client.pipeline(transaction=False)
    for name in QUEUE_LISTS:
        pipeline.llen(name)
    return int(sum(pipeline.execute()))


def missing_batches(client: "redis.Redis", manifest: Manifest) -> Iterator[int]:
    """Numbers of batches that are neither done nor pushed, in order."""
    keys = RunKeys(manifest.run)
    bodies = [cast("bytes | None", client.get(key)) or b"" for key in (keys.done, keys.pushed)]
    for number in range(manifest.batches):
        place, mask = number // 8, 0x80 >> number % 8
        if not any(place < len(body) and body[place] & mask for body in bodies):
            yield number


def done_batches(client: "redis.Redis", manifest: Manifest) -> int:
    """How many batches are committed."""
    return int(client.bitcount(RunKeys(manifest.run).done))


def push_missing(
    app: Celery,
    client: "redis.Redis",
    settings: FleetSettings,
    manifest: Manifest,
    pressure: Backpressure,
    on_pushed: Callable[[int], None] = lambda count: None,
    on_held: Callable[[str], None] = lambda sentence: None,
) -> int:
    """Push what is missing; returns how many.

    Args:
        app, client, settings, manifest: Of the run.
        pressure: How many batches may wait in the queue.
        on_pushed: Told how many more were pushed.
        on_held: Told why nothing is pushed just now.

    Raises:
        BrokerUnavailable: Redis is away; the same command goes on from here.
    """
    pushed = 0
    with broker_errors(settings):
        missing = missing_batches(client, manifest)
        for first in missing:
            group = [first, *islice(missing, room_in_queue(client, pressure, on_held) - 1)]
            _push_group(app, client, settings, manifest, group)
            pushed += len(group)
            on_pushed(len(group))
    return pushed


def state_fields(manifest: Manifest) -> dict[str, object]:
    """What Redis is told of a run, from its manifest alone."""
    told: dict[str, object] = {
        "total": manifest.prompts,
        "batches": manifest.batches,
        "rejected": manifest.rejected,
        "priority": manifest.priority,
        "created_at": manifest.created_at,
    }
    if manifest.model:
        told["model"] = manifest.model
    if manifest.repair is not None:
        told["replaces"] = msgspec.json.encode(manifest.repair).decode()
    return told


def tell_state(client: "redis.Redis", manifest: Manifest, store_url: str) -> None:
    """Tell Redis of a run, and where it lies."""
    client.hset(RunKeys(manifest.run).state, mapping=cast("Any", state_fields(manifest) | {"store": store_url}))


def note_repairs(client: "redis.Redis", manifest: Manifest, last: int) -> None:
    """Tell Redis the number of a run's last repair, so that `status` finds them without the store."""
    keys = RunKeys(manifest.run)
    if last and client.hexists(keys.state, "status"):
        client.hset(keys.state, "repairs", str(last))


def repairs_noted(client: "redis.Redis", keys: RunKeys) -> int:
    """The number of the last repair that Redis knows of a run; 0 if there is none."""
    return int(cast("bytes | None", client.hget(keys.state, "repairs")) or 0)


def settle(client: "redis.Redis", keys: RunKeys) -> str:
    """All messages are pushed: the run is running, or complete already; one on hold stays so. Returns the status."""
    lasting = [key for key in keys.lasting() if key not in {keys.state, keys.counts}]
    script = client.register_script(_SETTLE)
    status: bytes = script(keys=[keys.state, keys.counts, *lasting], args=[round(names.FINISHED_TTL_S)])
    if status == b"complete":
        client.zrem(names.RUNS, keys.run)
    return status.decode()


def room_in_queue(client: "redis.Redis", pressure: Backpressure, on_held: Callable[[str], None] = lambda sentence: None) -> int:
    """How many batches may be pushed now, at least one: waits for it."""
    held = False
    while not (room := pressure.room(waiting := waiting_in_queue(client), held=held)):
        held = True
        on_held(f"{waiting:,} batches wait in the queue; more are pushed when {pressure.low:,} do (--max-queued)")
        time.sleep(LOOK_AGAIN_S)
    return min(GROUP, room)


def _push_group(app: Celery, client: "redis.Redis", settings: FleetSettings, manifest: Manifest, numbers: list[int]) -> None:
    try:
        with app.producer_pool.acquire(block=True) as producer, producer.batch(max_size=GROUP):
            for number in numbers:
                push(app, manifest.message_of(number), manifest.priority, producer=producer)
    except kombu.exceptions.OperationalError as error:
        raise BrokerUnavailable(without_password(settings.broker), str(error)) from error
    pipeline = client.pipeline(transaction=True)
    for number in numbers:
        pipeline.setbit(RunKeys(manifest.run).pushed, number, 1)
    pipeline.execute()
