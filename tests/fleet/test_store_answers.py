"""A store that answers what it should not: too busy, denied, expired; that loses an answer, or gives none at all.

What is finished waits, its cause is told, nothing is generated twice, and the worker goes on by itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.quickstart.processes import free_port, wait_until
from ops.quickstart.servers import S3Access, redis_server
from tests.fleet.harness import FleetUnderTest
from tests.fleet.store_proxy import StoreProxy
from workers.shards import MAX_UNWRITTEN

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]


@dataclass
class Proxied:
    """A fleet on a real S3 server, and the proxy between them."""

    fleet: FleetUnderTest
    proxy: StoreProxy

    def under_way(self, prompts: int) -> None:
        self.fleet.engine()
        self.fleet.worker()
        self.fleet.enqueue(self.fleet.prompts(prompts), "r", "--batch-size", "4")
        wait_until(lambda: self.fleet.counted() > 40, 30, "the run under way")

    def cause(self) -> str:
        return self.fleet.told_by("gpu0").get("cause", "")

    def wait_for_cause(self, *words: str, timeout_s: float = 30) -> None:
        def told() -> bool:
            cause = self.cause()
            return all(word in cause for word in words)

        wait_until(told, timeout_s, f"the worker tells {words}")
        (worker,) = self.fleet.status()["workers"]
        assert worker["state"] == "waiting"
        assert worker["cause"].startswith("store s3://")

    def assert_done_once(self, prompts: int) -> None:
        self.fleet.wait_complete(timeout_s=50)
        assert self.fleet.assert_whole(prompts=prompts)["failed"] == 0
        assert set(self.fleet.generated("gpu0").values()) == {1}
        wait_until(lambda: self.cause() == "", 10, "no cause any more")


@pytest.fixture
def proxied(tmp_path: Path, s3_access: S3Access) -> Iterator[Proxied]:
    proxy = StoreProxy(s3_access.endpoint).start()
    port = free_port()
    server = redis_server(tmp_path / "redis", port)
    environment = {**s3_access.environment, "AWS_ENDPOINT_URL": proxy.url}
    fleet = FleetUnderTest(tmp_path, f"s3://{s3_access.bucket}/{tmp_path.name}", environment, server.start(), port)
    try:
        yield Proxied(fleet, proxy)
    finally:
        fleet.stop()
        proxy.stop()


def test_a_store_that_asks_for_fewer_requests_is_asked_again_tells_so_and_costs_no_answer(proxied: Proxied) -> None:
    proxied.under_way(600)
    busy = proxied.proxy.rule("answer", status=503, code="SlowDown")
    proxied.wait_for_cause("503 S", "it wants fewer requests at once")
    wait_until(lambda: proxied.fleet.told_by("gpu0")["in_flight"] == "0", 30, "nothing is begun any more")
    assert len(proxied.fleet.held_by("gpu0")) <= MAX_UNWRITTEN + 20, "what waits for the store, and what was open"
    proxied.proxy.heal()
    assert busy.met.total() > MAX_UNWRITTEN
    proxied.assert_done_once(600)


def test_a_store_that_is_too_busy_for_every_third_request_slows_a_run_and_costs_nothing(proxied: Proxied) -> None:
    busy = proxied.proxy.rule("answer", status=503, code="SlowDown", every=3)
    proxied.under_way(80)
    proxied.assert_done_once(80)
    assert busy.met.total() > 20, "twenty shards in, twenty out"


def test_a_put_whose_answer_is_lost_meets_its_own_object_and_is_done(proxied: Proxied) -> None:
    lost = proxied.proxy.rule("lose_answer", methods=("PUT",), part="/runs/", times=1)
    proxied.under_way(100)
    proxied.assert_done_once(100)
    shards = {f"r/{kind}/{number:08}.jsonl.zst" for kind in ("inputs", "completions") for number in range(25)}
    assert set(lost.met) == {"r/manifest.json", *shards}
    (worker_log,) = proxied.fleet.folder.glob("worker-gpu0-*.log")
    assert worker_log.read_text().count("shard.exists") == 25


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (400, "ExpiredToken"), (403, "ExpiredToken"), (403, "AccountSuspended")]
)
def test_a_store_that_denies_in_mid_run_is_waited_for_and_taken_up_when_it_grants_again(
    proxied: Proxied, status: int, code: str
) -> None:
    proxied.under_way(400)
    proxied.proxy.rule("answer", status=status, code=code)
    proxied.wait_for_cause("denied", "check the credentials, the bucket and its policy")
    assert code in proxied.cause() or f"{status}" in proxied.cause()
    wait_until(lambda: proxied.fleet.told_by("gpu0")["in_flight"] == "0", 30, "nothing is begun any more")
    proxied.proxy.heal()
    proxied.assert_done_once(400)


def test_credentials_that_are_replaced_in_their_file_are_taken_by_a_running_worker(
    proxied: Proxied, s3_access: S3Access, tmp_path: Path
) -> None:
    given = tmp_path / "credentials"
    write = writer_of(given, s3_access.access_key)
    write(s3_access.secret_key)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del proxied.fleet.store_env[name]
    proxied.fleet.store_env["AWS_SHARED_CREDENTIALS_FILE"] = str(given)
    proxied.under_way(400)
    proxied.proxy.rule("answer", status=400, code="ExpiredToken")
    proxied.wait_for_cause("denied")
    given.unlink()  # as some tools replace it: for a moment there is none
    proxied.wait_for_cause("Unable to locate credentials")
    write("of yesterday")
    wait_until(lambda: "Unable" not in proxied.cause(), 30, "the worker has found the new file")
    proxied.proxy.heal()
    proxied.wait_for_cause("SignatureDoesNotMatch")
    write(s3_access.secret_key)
    proxied.assert_done_once(400)


def writer_of(path: Path, key: str) -> Callable[[str], None]:
    def write(secret: str) -> None:
        path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")

    return write


def test_a_store_that_takes_connections_and_never_answers_is_told_and_given_up_in_time(proxied: Proxied) -> None:
    proxied.under_way(400)
    proxied.proxy.rule("hold")
    proxied.wait_for_cause("no answer for 10 s")
    wait_until(lambda: proxied.fleet.told_by("gpu0")["in_flight"] == "0", 30, "nothing is begun any more")
    assert len(proxied.fleet.held_by("gpu0")) <= MAX_UNWRITTEN + 20
    proxied.proxy.heal()  # what was asked before gets no answer ever; its time runs out
    proxied.assert_done_once(400)
