"""A store that is cut off in mid-run: what is finished waits in bounded memory, the cause is told, nothing is done twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.drill.proxy import Proxy
from ops.quickstart.processes import free_port, wait_until
from ops.quickstart.servers import S3Access, redis_server
from tests.fleet.harness import FleetUnderTest
from workers.shards import MAX_UNWRITTEN

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]


@pytest.fixture
def cuttable(tmp_path: Path, s3_access: S3Access) -> Iterator[tuple[FleetUnderTest, Proxy]]:
    """A fleet on a real S3 server, and the way to it."""
    proxy = Proxy(int(s3_access.endpoint.rsplit(":", 1)[1])).start()
    port = free_port()
    server = redis_server(tmp_path / "redis", port)
    environment = {**s3_access.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}
    fleet = FleetUnderTest(tmp_path, f"s3://{s3_access.bucket}/{tmp_path.name}", environment, server.start(), port)
    try:
        yield fleet, proxy
    finally:
        fleet.stop()
        proxy.stop()


def test_a_store_that_is_away_holds_the_worker_back_tells_why_and_costs_no_answer(
    cuttable: tuple[FleetUnderTest, Proxy],
) -> None:
    fleet, proxy = cuttable
    fleet.engine()
    worker = fleet.worker()
    fleet.enqueue(fleet.prompts(900), "r", "--batch-size", "4")
    wait_until(lambda: fleet.counted() > 60, 30, "the run under way")
    proxy.cut()
    try:
        wait_until(lambda: fleet.told_by("gpu0").get("state") == "waiting", 30, "the worker tells that it waits")
        (told,) = fleet.status()["workers"]
        assert told["state"] == "waiting"
        assert told["cause"].startswith("store s3://")
        assert told["cause"].endswith("check FLEET_STORE and AWS_ENDPOINT_URL")
        wait_until(lambda: fleet.told_by("gpu0")["in_flight"] == "0", 30, "nothing is begun any more")
        held = len(fleet.held_by("gpu0"))
        assert held <= MAX_UNWRITTEN + 20, "what waits for the store, and the batches that were open"
    finally:
        proxy.restore()
    fleet.wait_complete(timeout_s=80)
    assert fleet.assert_whole(prompts=900)["failed"] == 0
    assert set(fleet.generated("gpu0").values()) == {1}
    wait_until(lambda: fleet.told_by("gpu0").get("cause") == "", 10, "no cause any more")
    assert worker.stop() == 0
