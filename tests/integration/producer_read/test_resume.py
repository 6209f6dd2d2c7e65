"""Resume and rebuild: from nothing, from halves, and while workers are at work."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
import redis
import redis.asyncio

from producer.queue_state import taken_care_of
from producer.rebuild import rebuild
from producer.resume import resume
from producer.run_lock import run_lock
from producer.status import status
from tests.integration.producer_read.conftest import Ran, Run
from tests.integration.producer_read.stored_run import StoredRun, write_run
from workers.broker import QUEUE_LISTS, UNACKED
from workers.contract import names
from workers.contract.names import RunKeys
from workers.contract.schema import ShardCounts, encode_shard
from workers.contract.settings import FleetSettings
from workers.ledger import Claim, Ledger
from workers.object_store import ObjectInfo, ObjectStore

pytestmark = pytest.mark.integration

KEYS = RunKeys("r")


@pytest.fixture
def half(store: ObjectStore) -> StoredRun:
    """Five batches of four; three are answered."""
    return write_run(store, answered=3)


@pytest.fixture
async def ledger(redis_url: str) -> Any:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        ledger = Ledger(client, "gpu0@h", lease_s=15.0)
        writer = asyncio.create_task(ledger.write_checkpoints())
        yield ledger
        writer.cancel()


async def kept(ledger: Ledger, claim: Claim, stored: StoredRun, number: int, indexes: range) -> None:
    """Checkpoint some outcomes of a batch."""
    rows = stored.outcomes(number)
    await asyncio.gather(*(ledger.checkpoint(claim, rows[index]) for index in indexes))


def resumed(run_command: Run, code: int = 0) -> Ran:
    ran = run_command(resume, "r", "--json")
    assert ran.code == code, ran.err
    return ran


def queued(client: "redis.Redis") -> int:
    return sum(client.llen(name) for name in QUEUE_LISTS)


def counts(client: "redis.Redis") -> dict[str, int]:
    found = cast("dict[bytes, bytes]", client.hgetall(KEYS.counts))
    return {name.decode(): int(value) for name, value in found.items() if name != b"sampled_at"}


def test_after_flushall_everything_is_rebuilt(half: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    told = resumed(run_command).json
    expected = {"status": "running", "status_before": None, "total": 20, "completed": 11, "failed": 1, "pending": 8}
    assert {name: told[name] for name in expected} == expected
    assert (told["batches"], told["already_done"], told["pushed"], told["waiting"], told["leased"]) == (5, 3, 2, 0, 0)
    assert queued(client) == 2
    assert taken_care_of(client, "r") == ({3, 4}, set())
    shard_bytes = sum(len(half.store.get(half.output_key(number)) or b"") for number in range(3))
    assert counts(client) == {
        "completed": 11,
        "failed": 1,
        "prompt_tokens": 60,
        "completion_tokens": 77,
        "batches": 3,
        "shards": 3,
        "shard_bytes": shard_bytes,
    }
    assert client.hgetall(KEYS.reasons) == {b"empty": b"1"}
    assert client.hgetall(KEYS.flags) == {b"truncated": b"2"}
    assert client.get(KEYS.done) == b"\xe0"
    assert client.get(KEYS.pushed) == b"\xf8"
    assert client.zscore(names.RUNS, "r") is not None
    assert client.hget(KEYS.state, "model") == b"m"
    shown = run_command(status, "r", "--json").json
    assert (shown["total"], shown["completed"], shown["failed"], shown["pending"]) == (20, 11, 1, 8)


def test_a_second_resume_pushes_nothing(half: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    resumed(run_command)
    before = {key: client.dump(key) for key in client.scan_iter("fleet:{r}:*")}
    told = resumed(run_command).json
    assert (told["pushed"], told["waiting"], told["status_before"]) == (0, 2, "running")
    assert queued(client) == 2
    assert {key: client.dump(key) for key in client.scan_iter("fleet:{r}:*")} == before
    text = run_command(resume, "r").out
    assert text == (
        "run r (it was running): 11 completed, 1 failed, 8 pending; 3 of 5 batches done, status running\n"
        "  0 batches pushed, 2 in the queue already, 0 being worked on\n"
    )


def test_a_message_that_a_worker_holds_counts_as_waiting(half: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    resumed(run_command)
    name = next(name for name in QUEUE_LISTS if client.llen(name))
    raw = cast("bytes", client.rpop(name))
    client.hset(UNACKED, "tag", msgspec.json.encode([msgspec.Raw(raw), "", "q"]))
    assert resumed(run_command).json["waiting"] == 2


def test_a_whole_run_becomes_complete_and_its_keys_expire(store: ObjectStore, run_command: Run, client: "redis.Redis") -> None:
    write_run(store)
    told = resumed(run_command).json
    assert (told["status"], told["pushed"], told["pending"]) == ("complete", 0, 0)
    assert client.zscore(names.RUNS, "r") is None
    assert all(client.ttl(key) > 0 for key in client.scan_iter("fleet:*"))


def test_a_complete_run_that_lost_a_shard_runs_again(store: ObjectStore, run_command: Run, client: "redis.Redis") -> None:
    stored = write_run(store)
    resumed(run_command)
    store.delete(stored.output_key(1))
    told = resumed(run_command).json
    assert (told["status"], told["status_before"], told["pushed"], told["pending"]) == ("running", "complete", 1, 4)
    assert all(client.ttl(key) == -1 for key in client.scan_iter("fleet:{r}:*"))


@pytest.mark.parametrize("held", ["paused", "cancelled", "enqueueing"])
def test_resume_lifts_what_holds_a_run(half: StoredRun, run_command: Run, client: "redis.Redis", held: str) -> None:
    resumed(run_command)
    client.hset(KEYS.state, "status", held)
    client.hset(KEYS.parked, "00000003", "a cause")
    told = resumed(run_command).json
    assert (told["status"], told["status_before"]) == ("running", held)
    assert client.hgetall(KEYS.parked) == {}


def test_rebuild_keeps_what_a_person_put_on_hold(
    half: StoredRun, run_command: Run, client: "redis.Redis", fleet_settings: FleetSettings
) -> None:
    resumed(run_command)
    client.hset(KEYS.state, "status", "paused")
    client.hset(KEYS.parked, mapping={"00000003": "a cause", "00000001": "long done"})
    assert rebuild(half.store, client, fleet_settings, half.manifest).status == "paused"
    assert client.hgetall(KEYS.parked) == {b"00000003": b"a cause"}
    assert client.getbit(KEYS.pushed, 3) == 0  # else the sweep would push what no worker takes
    assert client.getbit(KEYS.pushed, 4) == 1


async def test_checkpoints_of_open_batches_count(
    half: StoredRun, client: "redis.Redis", fleet_settings: FleetSettings, ledger: Ledger
) -> None:
    rebuild(half.store, client, fleet_settings, half.manifest)
    claimed = await ledger.claim("r", "00000003")
    assert claimed.claim is not None
    await kept(ledger, claimed.claim, half, 3, range(2))  # p12 ok, p13 failed
    before = counts(client)
    client.hset(KEYS.counts, "completed", 999)
    done = rebuild(half.store, client, fleet_settings, half.manifest)
    assert counts(client) == before
    assert (done.completed, done.failed, done.open_batches) == (12, 2, 1)
    assert client.hget(KEYS.reasons, "empty") == b"2"
    rows = half.outcomes(3)
    half.answer(3)
    assert await ledger.commit(claimed.claim, ShardCounts.of(rows), 10) == (True, "running")
    assert (counts(client)["completed"], counts(client)["failed"]) == (14, 2)


async def test_checkpoints_survive_a_flush_of_the_rest(
    half: StoredRun, client: "redis.Redis", fleet_settings: FleetSettings, ledger: Ledger
) -> None:
    """FLUSHALL while a worker goes on: it keeps its lease by its beat, and its later answers are not lost."""
    rebuild(half.store, client, fleet_settings, half.manifest)
    claimed = await ledger.claim("r", "00000003")
    assert claimed.claim is not None
    await kept(ledger, claimed.claim, half, 3, range(1))
    client.flushall()
    await kept(ledger, claimed.claim, half, 3, range(1, 3))
    claim = claimed.claim
    assert claim is not None
    assert (await ledger.beat("r", lambda: [claim])).lost == ()
    done = rebuild(half.store, client, fleet_settings, half.manifest)
    assert (done.completed, done.failed) == (12, 2)
    assert taken_care_of(client, "r") == (set(), {3})
    half.answer(3)
    await ledger.commit(claimed.claim, ShardCounts.of(half.outcomes(3)), 10)
    assert (counts(client)["completed"], counts(client)["failed"], counts(client)["batches"]) == (14, 2, 4)


async def test_a_stored_batch_that_is_not_committed_is_done_and_counted_once(
    half: StoredRun, client: "redis.Redis", fleet_settings: FleetSettings, ledger: Ledger
) -> None:
    rebuild(half.store, client, fleet_settings, half.manifest)
    claimed = await ledger.claim("r", "00000003")
    assert claimed.claim is not None
    await kept(ledger, claimed.claim, half, 3, range(4))
    half.answer(3)
    rebuild(half.store, client, fleet_settings, half.manifest)
    after = counts(client)
    assert (after["completed"], after["failed"], after["batches"]) == (14, 2, 4)
    assert await ledger.commit(claimed.claim, ShardCounts.of(half.outcomes(3)), 10) == (False, "running")
    await kept(ledger, claimed.claim, half, 3, range(4))  # late: the batch is done
    assert counts(client) == after
    assert client.exists(KEYS.checkpoints("00000003")) == 0


class CommitsDuringListing:
    """The store of a run where a worker commits a batch just after the listing."""

    def __init__(self, store: ObjectStore, commit: Any) -> None:
        self._store, self._commit = store, commit
        self.url = store.url

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from list(self._store.list(prefix))
        commit, self._commit = self._commit, lambda: None
        commit()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_commit_during_the_listing_is_not_undone(
    half: StoredRun, client: "redis.Redis", fleet_settings: FleetSettings
) -> None:
    rebuild(half.store, client, fleet_settings, half.manifest)

    def commit() -> None:
        half.answer(3)
        client.setbit(KEYS.done, 3, 1)

    store = cast("ObjectStore", CommitsDuringListing(half.store, commit))
    done = rebuild(store, client, fleet_settings, half.manifest)
    assert (len(done.done), done.completed, done.failed) == (4, 14, 2)
    assert client.get(KEYS.done) == b"\xf0"


def test_a_done_batch_whose_shard_is_gone_is_pushed_again(half: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    resumed(run_command)
    client.setbit(KEYS.done, 4, 1)
    told = resumed(run_command).json
    assert (told["already_done"], client.getbit(KEYS.done, 4)) == (3, 0)


def test_counts_lost_by_the_store_are_taken_from_the_rows(half: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    half.store.put(half.output_key(0), encode_shard(half.outcomes(0)))
    assert resumed(run_command).json["completed"] == 11


def test_a_shard_that_tells_nothing_is_parked_and_named(half: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    half.store.put(half.output_key(0), b"?")
    ran = resumed(run_command, code=1)
    assert (ran.json["corrupt"], list(ran.json["problems"])) == (1, ["00000000"])
    assert (ran.json["pushed"], client.getbit(KEYS.pushed, 0)) == (2, 0)
    assert client.hexists(KEYS.parked, "00000000")


def test_an_output_shard_of_another_length_is_parked_and_its_prompts_run_again_once_it_is_deleted(
    half: StoredRun, run_command: Run, client: "redis.Redis"
) -> None:
    half.rewrite_raw(0, (half.store.get(half.output_key(0)) or b"") + b"\n")
    ran = resumed(run_command, code=1)
    assert (ran.json["corrupt"], ran.json["already_done"], ran.json["pushed"]) == (1, 2, 2)
    assert "bytes that its worker wrote; restore the object, or delete it" in ran.json["problems"]["00000000"]
    half.store.delete(half.output_key(0))
    assert resumed(run_command).json["pushed"] == 1
    assert client.hgetall(KEYS.parked) == {}


def test_bad_input_shards_are_named_and_the_others_pushed(half: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    half.store.delete(half.input_key(3))
    ran = resumed(run_command, code=1)
    assert (ran.json["pushed"], ran.json["pending"], queued(client)) == (1, 8, 1)
    sentence = f"{half.input_key(3)}: found nothing, expected an input shard; restore the object, then `producer resume`"
    assert ran.json["problems"] == {"00000003": sentence}
    assert (client.getbit(KEYS.pushed, 3), client.hget(KEYS.parked, "00000003")) == (0, sentence.encode())
    half.store.put(half.input_key(3), encode_shard(half.prompts[0]))
    text = run_command(resume, "r")
    assert (text.code, f"not pushed: {half.input_key(3)}: found digest" in text.out) == (1, True)
    half.store.put(half.input_key(3), encode_shard(half.prompts[3]))
    assert resumed(run_command).json["pushed"] == 1
    assert client.hgetall(KEYS.parked) == {}


def test_one_producer_at_a_time(half: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    with run_lock(client, "r"):
        ran = run_command(resume, "r")
    assert ran.code == 1
    assert "enqueues or resumes it now; wait until that has ended (a producer that died counts as ended after 30 s)" in ran.err
    assert client.exists(KEYS.enqueue) == 0
    resumed(run_command)


def test_a_jump_of_the_totals_is_no_rate(half: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    resumed(run_command)
    client.lpush(KEYS.series, b"[1,2,3,4,5]")
    client.hset(KEYS.counts, "sampled_at", 7)
    resumed(run_command)
    assert (client.llen(KEYS.series), client.hget(KEYS.counts, "sampled_at")) == (1, b"7")
    client.hset(KEYS.counts, "completed", 1)
    resumed(run_command)
    assert (client.llen(KEYS.series), client.hget(KEYS.counts, "sampled_at")) == (0, None)
