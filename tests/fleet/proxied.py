"""A fleet whose store is a real S3 server behind a proxy that knows requests."""

from dataclasses import dataclass

from ops.quickstart.processes import wait_until
from tests.fleet.harness import FleetUnderTest
from tests.fleet.store_proxy import StoreProxy
from workers.contract.settings import StoreSettings
from workers.store import ObjectStore, open_store


@dataclass
class Proxied:
    """The fleet and its proxy. `endpoint` leads past it."""

    fleet: FleetUnderTest
    proxy: StoreProxy
    endpoint: str

    def enqueue(self, prompts: int) -> None:
        self.fleet.enqueue(self.fleet.prompts(prompts), "r", "--batch-size", "4")

    def under_way(self, prompts: int) -> None:
        self.fleet.engine()
        self.fleet.worker()
        self.enqueue(prompts)
        wait_until(lambda: self.fleet.counted() > 40, 30, "the run under way")

    def store(self) -> ObjectStore:
        """The fleet's store, past the proxy; its variables must be in the environment."""
        return open_store(StoreSettings(store=self.fleet.store_url))

    def parked(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.fleet.client.hgetall("fleet:{r}:parked")  # type: ignore[assignment]
        return found

    def log_of(self, worker: str) -> str:
        (path,) = self.fleet.folder.glob(f"worker-{worker}-*.log")
        return path.read_text()

    def cause(self) -> str:
        return self.fleet.told_by("gpu0").get("cause", "")

    def wait_for_cause(self, *words: str) -> None:
        def told() -> bool:
            cause = self.cause()
            return all(word in cause for word in words)

        wait_until(told, 30, f"the worker tells {words}")
        (worker,) = self.fleet.status()["workers"]
        assert worker["state"] == "waiting"
        assert worker["cause"].startswith(f"store {self.fleet.store_url}: ")

    def wait_until_idle(self) -> None:
        wait_until(lambda: self.fleet.told_by("gpu0")["in_flight"] == "0", 30, "nothing is begun any more")

    def assert_done_once(self, prompts: int) -> None:
        self.fleet.wait_complete(timeout_s=50)
        assert self.fleet.assert_whole(prompts=prompts)["failed"] == 0
        assert set(self.fleet.generated("gpu0").values()) == {1}
        wait_until(lambda: self.cause() == "", 10, "no cause any more")
