"""Two workers write one batch: the first object stays, and who comes later takes it for its own, counts included."""

import signal
from collections.abc import Iterator

import msgspec
import pytest

from ops.quickstart.processes import wait_until
from tests.fleet.harness import DEFAULT_ENGINE
from tests.fleet.proxied import Proxied
from tests.fleet.store_proxy import StoreProxy

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

PROMPTS, BATCHES = 40, 10
OTHER_ENGINE = (*DEFAULT_ENGINE[:-1], "8")
"""Other lengths of the same answers."""


@pytest.fixture
def second(proxied: Proxied) -> Iterator[StoreProxy]:
    """The second worker's own way to the store."""
    proxy = StoreProxy(proxied.endpoint).start()
    try:
        yield proxy
    finally:
        proxied.fleet.stop()
        proxy.stop()


@pytest.mark.parametrize("emptied", [False, True], ids=["takes over the answers", "generates its own"])
def test_who_loses_the_race_of_a_conditional_put_takes_the_winners_object_for_its_own(
    proxied: Proxied, second: StoreProxy, emptied: bool
) -> None:
    fleet = proxied.fleet
    fleet.engine("gpu0")
    fleet.engine("gpu1", *OTHER_ENGINE)
    slow = proxied.proxy.rule("hold", methods=("PUT",), part="/completions/")
    late = second.rule("hold", methods=("PUT",), part="/completions/")
    paused = fleet.worker("gpu0")
    proxied.enqueue(PROMPTS)
    wait_until(lambda: len(slow.met) == BATCHES, 30, "the first worker writes")
    paused.signal(signal.SIGSTOP)
    if emptied:
        fleet.client.flushall()
        assert fleet.producer("resume", "r").code == 0
    fleet.worker("gpu1", AWS_ENDPOINT_URL=second.url)
    wait_until(lambda: len(late.met) == BATCHES, 30, "the second worker writes the same batches")
    proxied.proxy.release(slow)
    wait_until(lambda: slow.passed == slow.met.total(), 10, "the first worker's objects are there")
    second.release(late)
    paused.signal(signal.SIGCONT)
    fleet.wait_complete()
    assert fleet.assert_whole(prompts=PROMPTS)["failed"] == 0
    assert proxied.log_of("gpu1").count("shard.exists") == BATCHES
    assert sum(fleet.generated("gpu1").values()) == (PROMPTS if emptied else 0)
    rows = [msgspec.json.decode(line) for line in fleet.producer("collect", "r", "-o", "-").out.splitlines()]
    assert {row["provenance"]["worker"].partition("@")[0] for row in rows} == {"gpu0"}, "the winner's rows"
    assert fleet.status()["total_output_tokens"] == sum(row["usage"]["completion_tokens"] for row in rows)
    assert proxied.parked() == {}
