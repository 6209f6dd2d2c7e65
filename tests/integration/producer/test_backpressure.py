"""No command lets the queue grow beyond its mark: `enqueue`, and `resume` of whatever kind."""

import subprocess
import threading
from pathlib import Path

import pytest
import redis

from ops.quickstart.processes import wait_until
from producer.publish import DEFAULT_MAX_QUEUED, Backpressure, room_in_queue
from producer.resume import resume_all
from tests.integration.producer.test_enqueue import KEYS, Place
from workers.broker import QUEUE_LISTS, connect
from workers.contract.settings import FleetSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def served(client: "redis.Redis", count: int) -> None:
    """Take messages as workers would."""
    for _ in range(count):
        assert any(client.rpop(name) for name in QUEUE_LISTS)


def test_enqueue_waits_at_the_high_mark_until_the_low_one(redis_url: str, file_url: str, tmp_path: Path) -> None:
    place = Place(redis_url, file_url, tmp_path)
    argv = place.argv(str(place.source(50)), "--batch-size", "1", "--max-queued", "20")
    log = (tmp_path / "enqueue.log").open("w+")
    with log, subprocess.Popen(argv, env=place.env, text=True, stdout=log, stderr=log) as producer:
        try:
            wait_until(lambda: place.waiting() == 20, 30, "the high mark")
            told = "20 batches wait in the queue; more are pushed when 10 do"
            wait_until(lambda: told in Path(log.name).read_text(), 20, "that it waits")
            served(place.client, 9)
            assert place.client.bitcount(KEYS.pushed) == 20, "above the low mark nothing is pushed"
            served(place.client, 1)
            wait_until(lambda: place.client.bitcount(KEYS.pushed) == 30, 30, "at the low mark it goes on, to the high one")
            assert place.waiting() == 20
            served(place.client, 20)
            assert producer.wait(20) == 0
        finally:
            producer.kill()
    assert place.client.bitcount(KEYS.pushed) == 50
    assert place.client.hget(KEYS.state, "status") == b"running"


@pytest.mark.parametrize("anew", [True, False])
def test_resume_waits_too(
    redis_url: str, file_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, anew: bool
) -> None:
    for module in ("resume", "lift"):
        monkeypatch.setattr(f"producer.{module}.Backpressure", lambda: Backpressure(20))
    place = Place(redis_url, file_url, tmp_path)
    place.told(place.source(50), "--batch-size", "1")
    place.client.delete(*QUEUE_LISTS, KEYS.pushed)
    place.client.hset(KEYS.state, "status", "paused")
    settings = FleetSettings(broker=redis_url, store=file_url)
    manifest = place.manifest()
    arguments = (place.store, connect(settings), settings, manifest)
    going_on = threading.Thread(target=lambda: resume_all(*arguments, check_inputs=True, anew=anew), daemon=True)
    going_on.start()
    for pushed in (20, 30, 40, 50):
        wait_until(lambda pushed=pushed: place.client.bitcount(KEYS.pushed) == pushed, 30, f"{pushed} pushed")  # type: ignore[misc]
        assert place.waiting() == 20
        served(place.client, 10)
    going_on.join(30)
    assert not going_on.is_alive()


def test_the_default_mark_is_far_and_finite(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    assert Backpressure().high == DEFAULT_MAX_QUEUED
    assert room_in_queue(client, Backpressure()) == 500
