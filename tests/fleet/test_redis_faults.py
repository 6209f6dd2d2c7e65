"""What becomes of a fleet when its Redis restarts, drops its clients, is full, read-only, cut off, or asks for a password."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from ops.drill.proxy import Proxy
from ops.quickstart.processes import ChildProcess, free_port, wait_until
from ops.quickstart.servers import redis_server
from tests.fleet.harness import LEASE_S, FleetUnderTest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

PASSWORD = "of-a-test"


def under_way(fleet: FleetUnderTest, prompts: int = 500) -> ChildProcess:
    fleet.engine()
    worker = fleet.worker()
    fleet.enqueue(fleet.prompts(prompts), "r", "--batch-size", "16")
    wait_until(lambda: fleet.counted() > 60, 30, "the run under way")
    return worker


def goes_on(fleet: FleetUnderTest) -> None:
    before = fleet.counted()
    wait_until(lambda: fleet.counted() > before or fleet.status_of() == "complete", 20, "an outcome after the fault")


def whole(fleet: FleetUnderTest, worker: ChildProcess, prompts: int = 500, repeated: int = 0) -> None:
    """The run ends by itself, under the same worker process, which then ends as it should."""
    fleet.wait_complete(timeout_s=60)
    assert fleet.assert_whole(prompts=prompts)["failed"] == 0
    assert sum(fleet.generated("gpu0").values()) - prompts <= repeated
    for key in fleet.client.scan_iter("fleet:*"):
        assert fleet.client.pttl(key) >= 0, key
    assert worker.alive()
    assert worker.stop() == 0


def test_restarts_with_its_file_once_and_three_times_in_three_seconds_and_kills_of_all_clients(fleet: FleetUnderTest) -> None:
    worker = under_way(fleet, 900)
    fleet.redis_process.kill()
    fleet.redis_process.start()
    goes_on(fleet)
    for _ in range(3):
        fleet.redis_process.kill()
        fleet.redis_process.start()
    goes_on(fleet)
    for kind in ("normal", "pubsub"):
        fleet.client.client_kill_filter(_type=kind)
    goes_on(fleet)
    whole(fleet, worker, 900)


def test_a_restart_without_its_memory_is_healed_by_resume(fleet: FleetUnderTest) -> None:
    worker = under_way(fleet)
    fleet.redis_process.kill()
    for path in (fleet.folder / "redis").rglob("*.aof*"):
        path.unlink()
    for path in (fleet.folder / "redis").rglob("*.rdb"):
        path.unlink()
    fleet.redis_process.start()
    assert fleet.status_of() == ""
    done = fleet.producer("resume", "r", "--json")
    assert done.code == 0, done.err
    whole(fleet, worker, repeated=100)


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[FleetUnderTest, Proxy]]:
    """A fleet whose way to Redis can be cut."""
    port = free_port()
    server = redis_server(tmp_path / "redis", port)
    fleet = FleetUnderTest(tmp_path, f"file://{tmp_path / 'store'}", {}, server.start(), port)
    proxy = Proxy(port).start()
    fleet.settings = {"FLEET_BROKER": f"redis://127.0.0.1:{proxy.port}/0"}
    try:
        yield fleet, proxy
    finally:
        fleet.stop()
        proxy.stop()


def test_a_cut_network_is_waited_out_for_longer_than_a_lease(proxied: tuple[FleetUnderTest, Proxy]) -> None:
    fleet, proxy = proxied
    worker = under_way(fleet)
    proxy.cut()
    try:
        wait_until(lambda: "beat.failed" in worker.log_path.read_text(), 20, "the cut felt")
        leases = dict(fleet.client.zrange("fleet:{r}:lease", 0, -1, withscores=True))  # type: ignore[arg-type]
        last_s = max(leases.values()) / 1000
        wait_until(lambda: fleet.client.time()[0] > last_s + 1, 20, "all leases lapsed")
    finally:
        proxy.restore()
    goes_on(fleet)
    whole(fleet, worker)


def test_a_full_redis_is_waited_for_and_what_could_not_be_enqueued_is_pushed_by_the_same_command(fleet: FleetUnderTest) -> None:
    worker = under_way(fleet)
    used = fleet.client.info("memory")["used_memory"]
    fleet.client.config_set("maxmemory", int(used * 0.9))
    wait_until(lambda: "ledger.waiting" in worker.log_path.read_text(), 20, "the worker waits")
    assert "maxmemory" in worker.log_path.read_text()
    refused = fleet.producer("enqueue", str(fleet.prompts(64, start=9000)), "--run", "late", "--max-tokens", "64")
    assert refused.code == 3, refused.err
    assert "maxmemory" in refused.err
    assert "Traceback" not in refused.err
    fleet.client.config_set("maxmemory", 0)
    goes_on(fleet)
    fleet.enqueue(fleet.prompts(64, start=9000), "late")
    fleet.wait_complete("late")
    fleet.wait_complete(timeout_s=60)
    fleet.assert_whole("late", prompts=64)
    assert fleet.assert_whole(prompts=500)["failed"] == 0
    assert worker.stop() == 0


def test_a_master_that_became_a_replica_is_waited_for_until_it_is_writable(fleet: FleetUnderTest) -> None:
    worker = under_way(fleet)
    fleet.client.replicaof("127.0.0.1", str(free_port()))  # of nobody: it stays as it is, but takes no writes
    wait_until(lambda: "read only replica" in worker.log_path.read_text(), 20, "the worker is refused")
    assert worker.alive()
    fleet.client.replicaof("NO", "ONE")
    goes_on(fleet)
    whole(fleet, worker, repeated=20)


def test_a_wrong_password_is_a_sentence_and_exit_3(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.client.config_set("requirepass", PASSWORD)
    for url, words in (
        (f"redis://127.0.0.1:{fleet.redis_port}/0", "it asks for a password"),
        (f"redis://:wrong@127.0.0.1:{fleet.redis_port}/0", "invalid username-password pair"),
    ):
        child = fleet.launch_worker(FLEET_BROKER=url)
        wait_until(lambda child=child: not child.alive(), 25, "the worker gone")  # type: ignore[misc]
        log = child.log_path.read_text()
        assert child.returncode() == 3, log[-2000:]
        assert words in log
        assert "Traceback" not in log
        assert "wrong@" not in log


def test_a_password_that_changes_at_work_is_waited_for(fleet: FleetUnderTest) -> None:
    admin = redis.Redis(port=fleet.redis_port)
    admin.acl_setuser("fleet", enabled=True, passwords=[f"+{PASSWORD}"], commands=["+@all"], keys=["*"], channels=["*"])
    fleet.settings = {"FLEET_BROKER": f"redis://fleet:{PASSWORD}@127.0.0.1:{fleet.redis_port}/0"}
    worker = under_way(fleet)
    admin.acl_setuser("fleet", enabled=False)
    for kind in ("normal", "pubsub"):
        admin.client_kill_filter(_type=kind, skipme=True)
    wait_until(lambda: "invalid username-password pair" in worker.log_path.read_text(), 20, "the worker is refused")
    admin.acl_setuser("fleet", enabled=True)
    wait_until(lambda: not worker.alive() or fleet.status_of() == "complete", 60, "done, or gone with a reason")
    if not worker.alive():  # then its supervisor starts it again
        assert worker.returncode() == 3
        worker.launch()
    whole(fleet, worker, repeated=20)


def test_a_redis_that_has_too_few_replicas_again_and_again_costs_no_answer_and_accuses_no_prompt(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.worker()
    fleet.enqueue(fleet.prompts(900), "r", "--batch-size", "8")
    for spell in range(3):
        wait_until(lambda spell=spell: fleet.counted() > 60 + spell * 150, 40, "the run under way")  # type: ignore[misc]
        fleet.client.config_set("min-replicas-to-write", 1)
        wait_until(lambda: fleet.told_by("gpu0") == {} or int(fleet.told_by("gpu0")["in_flight"]) > 0, 10, "refused")
        time.sleep(LEASE_S + 1)  # longer than a lease
        fleet.client.config_set("min-replicas-to-write", 0)
    fleet.wait_complete(timeout_s=60)
    assert fleet.assert_whole(prompts=900)["failed"] == 0
    assert set(fleet.generated("gpu0").values()) == {1}
