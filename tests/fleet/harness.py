"""The drill's fleet, with short leases, a default engine, and what must hold at the end of every test."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.drill.fleet import LocalFleet, Result, get_json, reachable
from ops.quickstart.processes import ChildProcess, wait_until

__all__ = ["DEFAULT_ENGINE", "FleetUnderTest", "Result", "get_json", "reachable"]

LEASE_S = 3.0
RENEWAL_S = 0.5
DEFAULT_ENGINE = (
    *("--max-running", "16", "--mean-tokens", "40", "--sigma", "0.8", "--cap", "400"),
    *("--tokens-per-second", "200", "--seed", "7"),
)


@dataclass
class FleetUnderTest(LocalFleet):
    """See the module."""

    @property
    def env(self) -> dict[str, str]:
        return {"FLEET_LEASE_S": str(LEASE_S), "FLEET_LEASE_RENEWAL_S": str(RENEWAL_S), **super().env}

    def engine(self, name: str = "gpu0", *options: str, port: int | None = None) -> ChildProcess:
        return super().engine(name, *(options or DEFAULT_ENGINE), port=port)

    def worker(self, name: str = "gpu0", engine: str | None = None, **settings: str) -> ChildProcess:
        return super().worker(name, engine, **settings)

    def launch_worker(self, name: str = "gpu0", engine: str | None = None, **settings: str) -> ChildProcess:
        return super().launch_worker(name, engine, **settings)

    def enqueue(self, source: Path, run: str = "r", *options: str) -> dict[str, Any]:
        done = self.producer("enqueue", str(source), "--run", run, "--max-tokens", "64", "--json", *options)
        assert done.code == 0, done.err
        answer: dict[str, Any] = done.json
        return answer

    def status(self, run: str = "r") -> dict[str, Any]:
        done = self.producer("status", run, "--json")
        assert done.code == 0, done.err
        answer: dict[str, Any] = done.json
        return answer

    def wait_complete(self, run: str = "r", timeout_s: float = 45.0) -> None:
        """Until the run says that it is complete."""
        wait_until(lambda: self.status_of(run) == "complete", timeout_s, f"run {run} complete")

    def assert_whole(self, run: str = "r", prompts: int | None = None) -> dict[str, Any]:
        """Audit clean, and the counters equal to it; returns the audit."""
        audit = self.producer("audit", run, "--json")
        assert audit.code == 0, audit.out + audit.err
        found: dict[str, Any] = audit.json
        assert found["clean"] is True
        assert (found["missing"], found["doubled"], found["orphan"], found["corrupt"]) == (0, 0, 0, 0)
        status = self.status(run)
        assert (status["completed"], status["failed"], status["pending"]) == (found["ok"], found["failed"], 0)
        assert status["total"] == found["rows"]
        if prompts is not None:
            assert found["rows"] == prompts
        return found
