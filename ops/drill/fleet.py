"""A whole fleet in processes on this machine: its own Redis, simulated engines, workers, and the producer's commands.

The drill and the fleet tests use the same one. Knows how to start and ask each part; what must hold is for those who use it.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import redis

from ops.quickstart.processes import ChildProcess, free_port
from ops.simulator.lengths import digest_of

BIN = Path(sys.executable).parent
PROBE = digest_of(b"Hello")
"""The prompt by which a worker asks whether its engine serves."""
_HTTP = httpx.Client(timeout=5.0, trust_env=False, headers={"connection": "close"})
COMMAND_WITHIN_S = 120.0
WORKER_READY_WITHIN_S = 60.0


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed."""
        return json.loads(self.out)


@dataclass
class LocalFleet:
    """Starts parts, runs commands, reads what is true.

    `settings` and `store_env` go to every part; `within` stands before the programs of workers and producer.
    """

    folder: Path
    store_url: str
    store_env: dict[str, str]
    redis_process: ChildProcess
    redis_port: int
    settings: dict[str, str] = field(default_factory=dict)
    within: tuple[str, ...] = ()
    children: list[ChildProcess] = field(default_factory=list)
    engines: dict[str, str] = field(default_factory=dict)

    @property
    def broker_port(self) -> int:
        """Where the parts find Redis; a proxy in front of it has another port than the server."""
        return self.redis_port

    @property
    def env(self) -> dict[str, str]:
        """What tells a part of the fleet where it is."""
        return {
            "FLEET_BROKER": f"redis://127.0.0.1:{self.broker_port}/0",
            "FLEET_STORE": self.store_url,
            **self.store_env,
            **self.settings,
        }

    @property
    def client(self) -> "redis.Redis":
        """Redis itself, past any proxy."""
        return redis.Redis(port=self.redis_port)

    def client_with(self, password: str) -> "redis.Redis":
        """The same, for a Redis that asks for a password."""
        return redis.Redis(port=self.redis_port, password=password)

    def engine(self, name: str, *options: str, port: int | None = None) -> ChildProcess:
        """Start a simulated engine."""
        port = port or free_port()
        url = f"http://127.0.0.1:{port}"
        argv = [str(BIN / "ops"), "simulate-engine", "--port", str(port), *options]
        child = ChildProcess(
            f"engine {name}", argv, self.folder / f"engine-{name}.log", ready=lambda: reachable(f"{url}/v1/models")
        )
        self.children.append(child.start())
        self.engines[name] = url
        return child

    def worker(self, name: str, engine: str | None = None, **settings: str) -> ChildProcess:
        """Start a worker beside an engine and wait until it is ready."""
        child = self.launch_worker(name, engine, **settings)
        child.wait_ready()
        return child

    def launch_worker(self, name: str, engine: str | None = None, **settings: str) -> ChildProcess:
        """Start a worker, and do not wait."""
        log_path = self.folder / f"worker-{name}-{len(self.children)}.log"
        child = ChildProcess(
            f"worker {name}",
            [*self.within, sys.executable, "-W", "ignore", "-m", "celery", "-A", "workers", "worker", "-n", f"{name}@%h"],
            log_path,
            ready=lambda: log_path.exists() and "worker.ready" in log_path.read_text(errors="replace"),
            ready_within_s=WORKER_READY_WITHIN_S,
            env={**self.env, "ENGINE_URL": engine or self.engines[name], **settings},
            stop_signals=((signal.SIGTERM, 15.0),),
        )
        child.launch()
        self.children.append(child)
        return child

    def producer(self, *arguments: str, stdin: str | None = None) -> Result:
        """Run a command to its end."""
        done = subprocess.run(
            [*self.within, str(BIN / "producer"), *arguments],
            env={**os.environ, **self.env},
            text=True,
            input=stdin,
            capture_output=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def prompts(self, count: int, start: int = 0) -> Path:
        """A source of short prompts, ids `p<number>`."""
        path = self.folder / f"prompts-{start}-{count}.jsonl"
        rows = ({"id": f"p{number}", "prompt": f"prompt number {number}"} for number in range(start, start + count))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def counted(self, run: str = "r") -> int:
        """Prompts with an outcome, straight from Redis."""
        found = self.client.hmget(f"fleet:{{{run}}}:counts", "completed", "failed")
        return sum(int(value or 0) for value in found)

    def status_of(self, run: str = "r") -> str:
        """Status of a run, straight from Redis; empty if it is unknown."""
        found: bytes | None = self.client.hget(f"fleet:{{{run}}}:state", "status")  # type: ignore[assignment]
        return (found or b"").decode()

    def held_by(self, name: str, run: str = "r") -> set[str]:
        """Batches that a worker holds."""
        found: dict[bytes, bytes] = self.client.hgetall(f"fleet:{{{run}}}:owner")  # type: ignore[assignment]
        return {batch.decode() for batch, owner in found.items() if owner.decode().startswith(f"{name}@")}

    def told_by(self, name: str) -> dict[str, str]:
        """What a worker says of itself in Redis; empty if it is silent."""
        for key in self.client.scan_iter(f"fleet:worker:{name}@*"):
            found: dict[bytes, bytes] = self.client.hgetall(key)  # type: ignore[assignment]
            return {field.decode(): value.decode() for field, value in found.items()}
        return {}

    def requests(self, engine: str, since: int = 0) -> list[dict[str, Any]]:
        """What an engine was asked since it started, without the first so many, the workers' own probes left out."""
        rows: list[dict[str, Any]] = get_json(f"{self.engines[engine]}/simulator/requests?since={since}")["requests"]
        return [row for row in rows if row["prompt_digest"] != PROBE]

    def generated(self, engine: str) -> dict[str, int]:
        """How often each prompt was begun at an engine, by prompt digest."""
        counts: dict[str, int] = {}
        for row in self.requests(engine):
            counts[row["prompt_digest"]] = counts.get(row["prompt_digest"], 0) + 1
        return counts

    def faults(self, engine: str, *rules: dict[str, Any]) -> None:
        """Change an engine's faults while it runs."""
        _HTTP.post(f"{self.engines[engine]}/simulator/faults", json={"fault": list(rules)}).raise_for_status()

    def stop(self) -> None:
        """Kill what still runs."""
        for child in reversed(self.children):
            child.kill()
        self.redis_process.kill()


def reachable(url: str) -> bool:
    """Whether a URL answers 200."""
    try:
        return _HTTP.get(url).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def get_json(url: str) -> Any:
    """What a URL answers."""
    return _HTTP.get(url).raise_for_status().json()
