"""Rebuild again and again, and empty Redis in between, while workers claim, checkpoint, write and commit."""

import asyncio
import random

import pytest
import redis
import redis.asyncio

from producer.audit import audit_run
from producer.rebuild import rebuild
from tests.integration.producer_read.stored_run import StoredRun, write_run
from workers.contract import layout
from workers.contract.names import RunKeys
from workers.contract.schema import ShardCounts
from workers.contract.settings import FleetSettings
from workers.ledger import Ledger
from workers.store import open_store

pytestmark = pytest.mark.integration

BATCHES = 60


async def work(stored: StoredRun, ledger: Ledger, queue: "asyncio.Queue[int]", rng: random.Random) -> None:
    """Bring batches to their end as a worker does, and deliver some of them twice."""
    while not queue.empty():
        number = queue.get_nowait()
        label = layout.batch_label(number)
        claimed = await ledger.claim("r", label)
        if claimed.claim is None:
            if claimed.outcome != "done":
                queue.put_nowait(number)
                await asyncio.sleep(0.01)
            continue
        rows = stored.outcomes(number)
        for row in rows:
            await ledger.checkpoint(claimed.claim, row)
            await asyncio.sleep(rng.random() * 0.004)
        if stored.store.head(stored.output_key(number)) is None:
            stored.answer(number)
        await asyncio.sleep(rng.random() * 0.01)
        size_bytes = len(stored.store.get(stored.output_key(number)) or b"")
        await ledger.commit(claimed.claim, ShardCounts.of(rows), size_bytes)
        if rng.random() < 0.2:
            queue.put_nowait(number)


@pytest.mark.parametrize("seed", range(3))
async def test_counters_are_right_at_the_end(settings: FleetSettings, seed: int) -> None:
    stored = write_run(open_store(settings), rows=BATCHES * 4, answered=0)
    client = redis.Redis.from_url(settings.broker)
    rng = random.Random(seed)
    rebuild(stored.store, client, settings, stored.manifest)
    queue: asyncio.Queue[int] = asyncio.Queue()
    for number in range(BATCHES):
        queue.put_nowait(number)
    async with redis.asyncio.Redis.from_url(settings.broker) as connection, asyncio.TaskGroup() as group:
        ledger = Ledger(connection, "gpu0@h", lease_s=15.0)
        writer = group.create_task(ledger.write_checkpoints())
        workers = [group.create_task(work(stored, ledger, queue, rng)) for _ in range(6)]
        rounds = 0
        while not all(worker.done() for worker in workers):
            rounds += 1
            if rounds % 4 == 0:
                client.flushall()
                await asyncio.sleep(0.01)
            await asyncio.to_thread(rebuild, stored.store, client, settings, stored.manifest, "lift")
            await asyncio.sleep(rng.random() * 0.02)
        writer.cancel()
    assert rounds > 8
    counters = client.hgetall(RunKeys("r").counts)
    found = audit_run(stored.store, stored.manifest)
    assert found.clean
    assert (int(counters[b"completed"]), int(counters[b"failed"])) == (found.ok, found.failed)
    assert (int(counters[b"batches"]), int(counters[b"shards"])) == (BATCHES, BATCHES)
    assert client.hget(RunKeys("r").state, "status") == b"complete"
    before = {name: value for name, value in counters.items() if name != b"sampled_at"}
    rebuild(stored.store, client, settings, stored.manifest)
    after = client.hgetall(RunKeys("r").counts)
    assert {name: value for name, value in after.items() if name != b"sampled_at"} == before
