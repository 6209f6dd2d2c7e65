"""A whole fleet in processes: its own Redis, simulated engines, workers, and the producer's commands."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from ops.quickstart.processes import ChildProcess, free_port, wait_until
from ops.simulator.lengths import digest_of

BIN = Path(sys.executable).parent
LEASE_S = 3.0
RENEWAL_S = 0.5


@dataclass
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class FleetUnderTest:
    """Starts parts, runs commands, reads what is true."""

    folder: Path
    store_url: str
    store_env: dict[str, str]
    redis_process: ChildProcess
    redis_port: int
    settings: dict[str, str] = field(default_factory=dict)
    children: list[ChildProcess] = field(default_factory=list)
    engines: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {
            "FLEET_BROKER": f"redis://127.0.0.1:{self.redis_port}/0",
            "FLEET_STORE": self.store_url,
            "FLEET_LEASE_S": str(LEASE_S),
            "FLEET_LEASE_RENEWAL_S": str(RENEWAL_S),
            **self.store_env,
            **self.settings,
        }

    @property
    def client(self) -> "redis.Redis":
        return redis.Redis(port=self.redis_port)

    def engine(self, name: str = "gpu0", *options: str, port: int | None = None) -> ChildProcess:
        """Start a simulated engine."""
        port = port or free_port()
        url = f"http://127.0.0.1:{port}"
        argv = [str(BIN / "ops"), "simulate-engine", "--port", str(port), *(options or DEFAULT_ENGINE)]
        child = ChildProcess(
            f"engine {name}", argv, self.folder / f"engine-{name}.log", ready=lambda: reachable(f"{url}/v1/models")
        )
        self.children.append(child.start())
        self.engines[name] = url
        return child

    def worker(self, name: str = "gpu0", engine: str | None = None, **settings: str) -> ChildProcess:
        """Start a worker beside an engine and wait until it is ready."""
        child = self.launch_worker(name, engine, **settings)
        child.wait_ready()
        return child

    def launch_worker(self, name: str = "gpu0", engine: str | None = None, **settings: str) -> ChildProcess:
        log_path = self.folder / f"worker-{name}-{len(self.children)}.log"
        child = ChildProcess(
            f"worker {name}",
            [sys.executable, "-W", "ignore", "-m", "celery", "-A", "workers", "worker", "-n", f"{name}@%h"],
            log_path,
            ready=lambda: log_path.exists() and "worker.ready" in log_path.read_text(errors="replace"),
            ready_within_s=30.0,
            env={**self.env, "ENGINE_URL": engine or self.engines[name], **settings},
            stop_signals=((signal.SIGTERM, 15.0),),
        )
        child.launch()
        self.children.append(child)
        return child

    def producer(self, *arguments: str, stdin: str | None = None) -> Result:
        """Run a command to its end."""
        done = subprocess.run(
            [str(BIN / "producer"), *arguments],
            env={**os.environ, **self.env},
            text=True,
            input=stdin,
            capture_output=True,
            timeout=50,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def prompts(self, count: int, start: int = 0) -> Path:
        """A source of short prompts, ids `p<number>`."""
        path = self.folder / f"prompts-{start}-{count}.jsonl"
        rows = ({"id": f"p{number}", "prompt": f"prompt number {number}"} for number in range(start, start + count))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

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

    def counted(self, run: str = "r") -> int:
        """Prompts with an outcome, straight from Redis."""
        found = self.client.hmget(f"fleet:{{{run}}}:counts", "completed", "failed")
        return sum(int(value or 0) for value in found)

    def told_by(self, name: str) -> dict[str, str]:
        """What a worker says of itself in Redis; empty if it is silent."""
        for key in self.client.scan_iter(f"fleet:worker:{name}@*"):
            found: dict[bytes, bytes] = self.client.hgetall(key)  # type: ignore[assignment]
            return {field.decode(): value.decode() for field, value in found.items()}
        return {}

    def wait_complete(self, run: str = "r", timeout_s: float = 45.0) -> None:
        """Until the run says that it is complete."""
        wait_until(
            lambda: self.client.hget(f"fleet:{{{run}}}:state", "status") == b"complete", timeout_s, f"run {run} complete"
        )

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

    def generated(self, engine: str) -> dict[str, int]:
        """How often each prompt was begun at an engine, by prompt digest; the worker's own probes left out."""
        rows = get_json(f"{self.engines[engine]}/simulator/requests")
        counts: dict[str, int] = {}
        for row in rows["requests"]:
            if row["prompt_digest"] == PROBE:
                continue
            counts[row["prompt_digest"]] = counts.get(row["prompt_digest"], 0) + 1
        return counts

    def faults(self, engine: str, *rules: dict[str, Any]) -> None:
        """Change an engine's faults while it runs."""
        body = json.dumps({"fault": list(rules)}).encode()
        request = urllib.request.Request(f"{self.engines[engine]}/simulator/faults", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=5) as response:
            assert response.status == 200

    def stop(self) -> None:
        for child in reversed(self.children):
            child.kill()
        self.redis_process.kill()


PROBE = digest_of(b"Hello")
DEFAULT_ENGINE = (
    *("--max-running", "16", "--mean-tokens", "40", "--sigma", "0.8", "--cap", "400"),
    *("--tokens-per-second", "200", "--seed", "7"),
)


def reachable(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as response:
        return json.loads(response.read())
