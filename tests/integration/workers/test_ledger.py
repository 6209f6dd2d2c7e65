"""The ledger's scripts on a real Redis: claims, checkpoints, commits, leases, and what each survives."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

import workers
from workers.contract import names
from workers.contract.names import RunKeys
from workers.contract.schema import Answer, Completion, Provenance, ShardCounts, Usage
from workers.ledger import Claim, Ledger, may_pass, pack, unpack

pytestmark = pytest.mark.integration

RUN = "r"
KEYS = RunKeys(RUN)
BATCH = "00000003"
LEASE_S = 0.6


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator["redis.asyncio.Redis"]:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.hset(KEYS.state, mapping={"status": "running", "total": 4, "batches": 2})
        await client.setbit(KEYS.pushed, 3, 1)
        yield client


@pytest.fixture
async def ledger(client: "redis.asyncio.Redis") -> AsyncIterator[Ledger]:
    async with writing(Ledger(client, "w1", LEASE_S)) as ledger:
        yield ledger


@pytest.fixture
async def other(client: "redis.asyncio.Redis") -> AsyncIterator[Ledger]:
    async with writing(Ledger(client, "w2", LEASE_S)) as ledger:
        yield ledger


class writing:  # noqa: N801  (reads as a verb where it is used)
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def __aenter__(self) -> Ledger:
        self._task = asyncio.create_task(self._ledger.write_checkpoints())
        return self._ledger

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def outcome(index: int, text: str = "answer", reason: str | None = None, flags: tuple[str, ...] = ()) -> Completion:
    return Completion(
        index=index,
        id=f"id-{index}",
        row=index,
        status="failed" if reason else "ok",
        reason=reason,
        answer=None if reason else Answer(text, output_ids=(1, 2)),
        usage=Usage(10, 2),
        flags=flags,
        provenance=Provenance(worker="w"),
    )


async def claimed(ledger: Ledger, batch: str = BATCH) -> Claim:
    answer = await ledger.claim(RUN, batch)
    assert answer.claim is not None, answer
    return answer.claim


def text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


async def counts(client: "redis.asyncio.Redis", key: str = KEYS.counts) -> dict[str, int]:
    found = await client.hgetall(key)
    return {text(name): int(value) for name, value in found.items() if int(value) and name != b"sampled_at"}


def test_a_long_completion_is_compressed_and_comes_back_the_same() -> None:
    long = outcome(1, "多语言 " * 5000)
    assert len(pack(long)) < 2000
    assert unpack(pack(long)) == long
    assert unpack(pack(outcome(2))) == outcome(2)


async def test_a_batch_is_claimed_once_until_its_lease_ends(ledger: Ledger, other: Ledger) -> None:
    first = await claimed(ledger)
    assert first.attempt == 1
    held = await other.claim(RUN, BATCH)
    assert (held.outcome, held.owner) == ("held", first.token)
    await asyncio.sleep(LEASE_S * 1.2)
    second = await claimed(other)
    assert second.attempt == 2


async def test_a_batch_of_an_unknown_run_is_not_claimed(ledger: Ledger) -> None:
    assert (await ledger.claim("nobody", BATCH)).outcome == "unknown"


@pytest.mark.parametrize("status", ["paused", "cancelled"])
async def test_a_run_that_takes_no_work_gives_no_batch_and_forgets_its_message(
    client: "redis.asyncio.Redis", ledger: Ledger, status: str
) -> None:
    await client.hset(KEYS.state, "status", status)
    assert (await ledger.claim(RUN, BATCH)).outcome == status
    assert await client.getbit(KEYS.pushed, 3) == 0  # the sweep does not miss it


async def test_deaths_under_a_prompt_go_with_its_batch_to_the_next_worker(
    client: "redis.asyncio.Redis", ledger: Ledger, other: Ledger
) -> None:
    claim = await claimed(ledger)
    await ledger.accuse(claim, {"a": 0, "b": 1, "c": 2}, died=True)
    for _ in range(2):  # safe to repeat
        await ledger.accuse(claim, {"d": 2}, died=True)
        await ledger.accuse(claim, {"a": 0}, died=False)
    assert await ledger.release(claim)
    again = await other.claim(RUN, BATCH)
    assert (dict(again.deaths), again.lapses, dict(again.kept)) == ({1: {"b"}, 2: {"c", "d"}}, 0, {})
    assert again.claim is not None
    await other.checkpoint(again.claim, outcome(1))
    await other.commit(again.claim, ShardCounts.of([outcome(1)]), 10)
    await ledger.accuse(claim, {"e": 1}, died=True)  # too late: it is done
    assert not await client.exists(KEYS.checkpoints(BATCH))
    assert await counts(client) == {
        "completed": 1,
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "batches": 1,
        "shards": 1,
        "shard_bytes": 10,
    }


async def test_a_worker_that_falls_silent_is_counted_and_one_that_gives_back_is_not(
    client: "redis.asyncio.Redis", ledger: Ledger, other: Ledger
) -> None:
    assert await ledger.release(await claimed(ledger))
    await claimed(ledger)
    await asyncio.sleep(LEASE_S * 1.2)
    taken_over = await other.claim(RUN, BATCH)
    assert taken_over.lapses == 1
    await asyncio.sleep(LEASE_S * 1.2)
    freed: tuple[str, ...] = ()
    for _ in range(20):
        freed += (await ledger.beat(RUN, lambda: [])).freed
        await asyncio.sleep(LEASE_S / 4)
    assert freed == (BATCH,)
    third = await ledger.claim(RUN, BATCH)
    assert third.lapses == 2
    assert third.claim is not None
    await ledger.checkpoint(third.claim, outcome(0))
    await asyncio.sleep(LEASE_S * 1.2)
    assert (await other.claim(RUN, BATCH)).lapses == 1  # the third brought something


async def test_checkpoints_are_counted_once_and_the_first_is_the_one_that_counts(
    client: "redis.asyncio.Redis", ledger: Ledger, other: Ledger
) -> None:
    claim = await claimed(ledger)
    mine = await ledger.checkpoint(claim, outcome(0, "mine"))
    theirs = await other.checkpoint(claim, outcome(0, "theirs"))
    assert mine.answer == theirs.answer == Answer("mine", output_ids=(1, 2))
    await asyncio.gather(*(ledger.checkpoint(claim, outcome(1, reason="empty")) for _ in range(20)))
    assert await counts(client) == {"completed": 1, "failed": 1, "prompt_tokens": 20, "completion_tokens": 4}
    assert await counts(client, KEYS.reasons) == {"empty": 1}
    assert await counts(client, KEYS.workers) == {"w1:completed": 1, "w1:failed": 1}


async def test_the_next_claim_brings_what_is_already_answered(ledger: Ledger, other: Ledger) -> None:
    claim = await claimed(ledger)
    await ledger.checkpoint(claim, outcome(0))
    await ledger.checkpoint(claim, outcome(7, flags=("truncated",)))
    assert await ledger.release(claim)
    again = await other.claim(RUN, BATCH)
    assert again.kept == {0: outcome(0), 7: outcome(7, flags=("truncated",))}


async def test_a_commit_counts_what_the_shard_holds_and_drops_the_traces(client: "redis.asyncio.Redis", ledger: Ledger) -> None:
    claim = await claimed(ledger)
    rows = [outcome(0), outcome(1, reason="empty", flags=("truncated",)), outcome(2)]
    await asyncio.gather(*(ledger.checkpoint(claim, row) for row in rows[:2]))  # the third was lost with an old Redis
    assert await ledger.commit(claim, ShardCounts.of(rows), 1234) == (True, "running")
    assert await counts(client) == {
        "completed": 2,
        "failed": 1,
        "prompt_tokens": 30,
        "completion_tokens": 6,
        "batches": 1,
        "shards": 1,
        "shard_bytes": 1234,
    }
    assert await counts(client, KEYS.reasons) == {"empty": 1}
    assert await counts(client, KEYS.flags) == {"truncated": 1}
    for key in (KEYS.lease, KEYS.owner, KEYS.attempts, KEYS.open, KEYS.checkpoints(BATCH)):
        assert not await client.exists(key), key


async def test_a_shard_that_another_wrote_corrects_the_counters_both_ways(
    client: "redis.asyncio.Redis", ledger: Ledger
) -> None:
    claim = await claimed(ledger)
    await asyncio.gather(*(ledger.checkpoint(claim, outcome(index, reason="nan")) for index in range(3)))
    stored = ShardCounts.of([outcome(0), outcome(1), outcome(2, reason="empty")])
    await ledger.commit(claim, stored, 10)
    assert (await counts(client))["completed"] == 2
    assert (await counts(client))["failed"] == 1
    assert await counts(client, KEYS.reasons) == {"empty": 1}


async def test_commit_and_late_checkpoint_of_a_done_batch_change_nothing(
    client: "redis.asyncio.Redis", ledger: Ledger, other: Ledger
) -> None:
    claim = await claimed(ledger)
    await ledger.commit(claim, ShardCounts.of([outcome(0)]), 10)
    before = await counts(client)
    assert (await other.commit(claim, ShardCounts.of([outcome(0)]), 10))[0] is False
    late = await other.checkpoint(claim, outcome(0, "late"))
    assert late.answer is not None
    assert await counts(client) == before
    assert not await client.exists(KEYS.checkpoints(BATCH))
    assert (await other.claim(RUN, BATCH)).outcome == "done"


async def test_the_last_commit_completes_the_run_and_lets_its_keys_expire(
    client: "redis.asyncio.Redis", ledger: Ledger
) -> None:
    await client.zadd(names.RUNS, {RUN: 1})
    await ledger.commit(await claimed(ledger, "00000000"), ShardCounts.of([outcome(0)]), 10)
    assert await client.hget(KEYS.state, "status") == b"running"
    _, status = await ledger.commit(await claimed(ledger, "00000001"), ShardCounts.of([outcome(1)]), 10)
    assert status == "complete"
    assert await client.zscore(names.RUNS, RUN) is None
    async for key in client.scan_iter("fleet:{r}:*"):
        assert await client.ttl(key) > 0, key


async def test_a_beat_keeps_the_lease_of_a_live_worker(ledger: Ledger, other: Ledger) -> None:
    claim = await claimed(ledger)
    for _ in range(6):
        await asyncio.sleep(LEASE_S / 3)
        assert (await ledger.beat(RUN, lambda: [claim])).lost == ()
    assert (await other.claim(RUN, BATCH)).outcome == "held"


async def beat_until_freed(ledger: Ledger) -> tuple[str, ...]:
    for _ in range(40):
        beat = await ledger.beat(RUN, lambda: [])
        if beat.freed:
            return beat.freed
        await asyncio.sleep(LEASE_S / 6)
    pytest.fail("no beat freed the batch of the silent worker")


async def test_a_silent_workers_batch_is_freed_once_by_anothers_beat(ledger: Ledger, other: Ledger) -> None:
    claim = await claimed(ledger)
    assert await beat_until_freed(other) == (BATCH,)
    assert (await other.beat(RUN, lambda: [])).freed == ()
    await claimed(other)
    assert (await ledger.beat(RUN, lambda: [claim])).lost == (BATCH,)  # it comes back, and learns that it lost


async def test_a_paused_worker_keeps_a_freed_batch_that_nobody_began(ledger: Ledger, other: Ledger) -> None:
    claim = await claimed(ledger)
    assert await beat_until_freed(other) == (BATCH,)
    assert (await ledger.beat(RUN, lambda: [claim])).lost == ()
    assert (await other.claim(RUN, BATCH)).outcome == "held"


async def test_after_an_outage_owners_renew_before_anyone_frees(
    client: "redis.asyncio.Redis", ledger: Ledger, other: Ledger
) -> None:
    claim = await claimed(ledger)
    await other.beat(RUN, lambda: [])
    await asyncio.sleep(LEASE_S * 1.5)  # nobody beats: Redis was away, every lease has lapsed
    assert (await other.beat(RUN, lambda: [])).freed == ()
    assert (await ledger.beat(RUN, lambda: [claim])).lost == ()
    assert (await other.claim(RUN, BATCH)).outcome == "held"


async def test_a_worker_goes_on_after_redis_lost_its_memory(client: "redis.asyncio.Redis", ledger: Ledger) -> None:
    claim = await claimed(ledger)
    await ledger.checkpoint(claim, outcome(0))
    await client.flushdb()
    assert (await ledger.beat(RUN, lambda: [claim])).lost == ()
    await ledger.checkpoint(claim, outcome(1))
    done, _ = await ledger.commit(claim, ShardCounts.of([outcome(0), outcome(1)]), 10)
    assert done
    assert (await counts(client))["completed"] == 2


async def test_only_the_holder_can_release(ledger: Ledger, other: Ledger) -> None:
    claim = await claimed(ledger)
    await asyncio.sleep(LEASE_S * 1.2)
    theirs = await claimed(other)
    assert await ledger.release(claim) is False
    assert await other.release(theirs) is True


async def test_a_parked_batch_tells_why_and_is_not_missed_by_the_sweep(client: "redis.asyncio.Redis", ledger: Ledger) -> None:
    await ledger.release(await claimed(ledger), parked_because="inputs/00000003: digest a, expected b")
    assert await client.hgetall(KEYS.parked) == {BATCH.encode(): b"inputs/00000003: digest a, expected b"}
    assert await client.getbit(KEYS.pushed, 3) == 0
    await claimed(ledger)
    assert not await client.exists(KEYS.parked)


async def test_every_key_of_a_working_run_is_in_the_table(client: "redis.asyncio.Redis", ledger: Ledger) -> None:
    await client.zadd(names.RUNS, {RUN: 1})
    claim = await claimed(ledger)
    await ledger.checkpoint(claim, outcome(0, flags=("truncated",)))
    await ledger.checkpoint(claim, outcome(1, reason="nan"))
    await ledger.beat(RUN, lambda: [claim])
    table = {key.pattern.replace("<run>", RUN).replace("<batch>", BATCH): key for key in names.KEYS}
    async for raw in client.scan_iter("fleet:*"):
        key = table[raw.decode()]
        assert text(await client.type(raw)) == key.type, raw
        assert (await client.ttl(raw) > 0) == (key.ttl_s is not None), raw


@pytest.mark.parametrize(("status", "stays"), [("running", 1), ("paused", 1), ("complete", 0), ("cancelled", 0), (None, 0)])
def test_a_run_that_was_taken_up_again_stays_in_the_list_of_those_under_way(
    redis_url: str, status: str | None, stays: int
) -> None:
    keys = RunKeys("r")
    with redis.Redis.from_url(redis_url) as client:
        client.zadd(names.RUNS, {"r": 1.0})
        if status:
            client.hset(keys.state, "status", status)
        leave = client.register_script((Path(workers.__file__).parent / "lua" / "leave.lua").read_text())
        leave(keys=[names.RUNS, keys.state], args=["r"])
        assert client.zcard(names.RUNS) == stays


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), True),
        (redis.ResponseError("Command # 1 (EVALSHA) of pipeline caused error: MISCONF Errors writing to the AOF file"), True),
        (redis.ResponseError("BUSY Redis is busy running a script"), True),
        (redis.ConnectionError("refused"), True),
        (redis.exceptions.ReadOnlyError("READONLY"), True),
        (redis.ResponseError("WRONGTYPE Operation against a key"), False),
        (ValueError("BUSY "), False),
    ],
)
def test_refusals_that_pass_are_waited_for(error: Exception, *, passes: bool) -> None:
    assert may_pass(error) is passes
