"""The faults of a drill: each strikes a running fleet, waits until work goes on, and repairs what a supervisor would."""

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ops.drill.fleet import BIN, LocalFleet, get_json
from ops.drill.measure import BACK_WITHIN_S, Fault
from ops.drill.proxy import Proxy
from ops.quickstart.processes import ChildProcess, wait_until

GIVE_UP_S = 3 * BACK_WITHIN_S
CUT_S = (4.0, 10.0)
SLOTS = 20
"""Of a worker on an engine that runs 16."""
ENGINE = (
    *("--max-running", "16", "--mean-tokens", "60", "--sigma", "0.8", "--cap", "400"),
    *("--tokens-per-second", "60", "--seed", "7"),
)
LOCK_TTL_S = 30.0
"""A killed producer's lock holds the next one back for so long."""
ENQUEUE_KILLED_AFTER_S = (0.4, 1.5)


@dataclass
class DrilledFleet(LocalFleet):
    """A fleet whose ways to Redis and to the store can be cut. `store_proxy` is None if the store is not ours to cut."""

    broker_proxy: Proxy | None = None
    store_proxy: Proxy | None = None
    workers: dict[str, ChildProcess] = field(default_factory=dict)
    engine_processes: dict[str, ChildProcess] = field(default_factory=dict)
    past_requests: list[str] = field(default_factory=list)

    @property
    def broker_port(self) -> int:
        """The proxy's."""
        return self.redis_port if self.broker_proxy is None else self.broker_proxy.port

    def begin(self, count: int) -> None:
        """Start so many engines and workers."""
        for number in range(count):
            name = f"gpu{number}"
            self.engine_processes[name] = self.engine(name, *ENGINE)
            self.workers[name] = self.launch_worker(name)
        for worker in self.workers.values():
            worker.wait_ready()

    def in_flight(self, name: str) -> int:
        """Requests at an engine."""
        state = get_json(f"{self.engines[name]}/simulator/state")
        return int(state["running"] + state["queued"])

    def remember_requests(self, name: str) -> None:
        """Keep what an engine was asked, before it is killed and forgets."""
        self.past_requests += [row["prompt_digest"] for row in self.requests(name)]

    def stop(self) -> None:
        """Kill what still runs."""
        super().stop()
        for proxy in (self.broker_proxy, self.store_proxy):
            if proxy is not None:
                with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                    proxy.stop()


class Striker:
    """Strikes one run of a fleet. Each method is a kind of fault: it says what it may repeat, and waits for work to go on."""

    def __init__(self, fleet: DrilledFleet, run: str, source: Path, rng: random.Random, begun_at: float) -> None:
        self._fleet = fleet
        self._run = run
        self._source = source
        self._rng = rng
        self._begun_at = begun_at

    def strike(self, kind: str) -> Fault:
        """Do it; `back_s` stays None if work did not go on in time."""
        name = self._rng.choice(sorted(self._fleet.workers))
        fault = Fault(kind, time.monotonic() - self._begun_at)
        with contextlib.suppress(TimeoutError):
            KINDS[kind](self, fault, name)
        return fault

    def _over(self) -> bool:
        return self._fleet.status_of(self._run) == "complete"

    def _until(self, condition: Callable[[], bool], what: str) -> float:
        """Seconds until a condition holds, or the run is complete."""
        begun = time.monotonic()
        wait_until(lambda: self._over() or condition(), GIVE_UP_S, what)
        return time.monotonic() - begun

    def _goes_on(self) -> float:
        before = self._fleet.counted(self._run)
        return self._until(lambda: self._fleet.counted(self._run) > before, "an outcome after the fault")

    def _taken_up(self, tokens: dict[bytes, bytes]) -> bool:
        """Whether each of these batches is done, or held under another token."""
        client, keys = self._fleet.client, f"fleet:{{{self._run}}}"
        for batch, token in tokens.items():
            owner = client.hget(f"{keys}:owner", batch.decode())
            if not client.getbit(f"{keys}:done", int(batch)) and (owner is None or owner == token):
                return False
        return True

    def _tokens_of(self, name: str) -> dict[bytes, bytes]:
        owners: dict[bytes, bytes] = self._fleet.client.hgetall(f"fleet:{{{self._run}}}:owner")  # type: ignore[assignment]
        return {batch: owner for batch, owner in owners.items() if owner.startswith(f"{name}@".encode())}

    def worker_killed(self, fault: Fault, name: str) -> None:
        """SIGKILL of a worker; another takes its batches up."""
        fault.target, fault.may_repeat = name, SLOTS
        tokens = self._tokens_of(name)
        self._fleet.workers[name].kill()
        try:
            fault.back_s = self._until(lambda: self._taken_up(tokens), "its batches taken up")
        finally:
            self._restart_worker(name)

    def worker_paused(self, fault: Fault, name: str) -> None:
        """SIGSTOP of a worker until others have its batches, then SIGCONT."""
        fault.target, fault.may_repeat = name, 2 * SLOTS
        tokens = self._tokens_of(name)
        self._fleet.workers[name].signal(signal.SIGSTOP)
        try:
            fault.back_s = self._until(lambda: self._taken_up(tokens), "its batches taken up")
        finally:
            self._fleet.workers[name].signal(signal.SIGCONT)

    def worker_stopped(self, fault: Fault, name: str) -> None:
        """SIGTERM of a worker: it drains, and others go on at once."""
        fault.target, fault.may_repeat = name, SLOTS
        worker = self._fleet.workers[name]
        worker.signal(signal.SIGTERM)
        try:
            wait_until(lambda: not worker.alive(), GIVE_UP_S, "the worker gone")
            fault.back_s = self._goes_on()
        finally:
            self._restart_worker(name)

    def engine_killed(self, fault: Fault, name: str) -> None:
        """SIGKILL of an engine, which its supervisor starts again."""
        fault.target = name
        self._fleet.remember_requests(name)
        fault.may_repeat = SLOTS
        engine = self._fleet.engine_processes[name]
        engine.kill()
        engine.start()
        fault.back_s = self._until(lambda: bool(self._fleet.requests(name)), "its engine asked again")

    def redis_killed(self, fault: Fault, _: str) -> None:
        """SIGKILL of Redis, which comes back with its append-only file."""
        self._fleet.redis_process.kill()
        self._fleet.redis_process.start()
        fault.back_s = self._goes_on()

    def redis_emptied(self, fault: Fault, _: str) -> None:
        """FLUSHALL, and `producer resume`. Answers of batches that no worker holds just then are generated again."""
        client, keys = self._fleet.client, f"fleet:{{{self._run}}}"
        opened: set[bytes] = client.smembers(f"{keys}:open")  # type: ignore[assignment]
        kept = sum(int(client.hlen(f"{keys}:open:{batch.decode()}")) for batch in opened)
        fault.may_repeat = kept + SLOTS * len(self._fleet.workers)
        client.flushall()
        begun = time.monotonic()
        done = self._fleet.producer("resume", self._run, "--json")
        if done.code == 0:
            fault.back_s = time.monotonic() - begun + self._goes_on()

    def connections_cut(self, fault: Fault, _: str) -> None:
        """CLIENT KILL of every client of Redis."""
        for kind in ("normal", "pubsub"):
            self._fleet.client.client_kill_filter(_type=kind)
        fault.back_s = self._goes_on()

    def network_cut(self, fault: Fault, _: str) -> None:
        """The way to Redis is cut for some seconds."""
        self._cut(fault, self._fleet.broker_proxy)

    def store_cut(self, fault: Fault, _: str) -> None:
        """The way to the store is cut for some seconds."""
        self._cut(fault, self._fleet.store_proxy)

    def _cut(self, fault: Fault, proxy: Proxy | None) -> None:
        if proxy is None:
            fault.left_out = "the store is yours, and not behind a proxy of the drill"
            return
        proxy.cut()
        time.sleep(self._rng.uniform(*CUT_S))
        proxy.restore()
        fault.back_s = self._goes_on()

    def producer_killed(self, fault: Fault, _: str) -> None:
        """SIGKILL of `producer enqueue` in the middle of another run; the same command again completes it."""
        run, fault.within_s = f"{self._run}-again", BACK_WITHIN_S + LOCK_TTL_S
        command = ["enqueue", str(self._source), "--run", run, "--max-tokens", "64", "--batch-size", "2"]
        argv = [str(BIN / "producer"), *command]
        first = ChildProcess("producer", argv, self._fleet.folder / f"{run}.log", env=self._fleet.env)
        self._fleet.children.append(first)
        first.launch()
        time.sleep(self._rng.uniform(*ENQUEUE_KILLED_AFTER_S))
        first.kill()
        begun = time.monotonic()
        try:
            done = self._fleet.producer(*command, "--json")
        except subprocess.TimeoutExpired:
            return
        if done.code == 0:
            fault.target, fault.back_s = run, time.monotonic() - begun

    def _restart_worker(self, name: str) -> None:
        worker = self._fleet.workers[name]
        worker.kill()
        self._fleet.workers[name] = self._fleet.launch_worker(name)


KINDS: dict[str, Callable[[Striker, Fault, str], None]] = {
    "worker-killed": Striker.worker_killed,
    "worker-paused": Striker.worker_paused,
    "worker-stopped": Striker.worker_stopped,
    "engine-killed": Striker.engine_killed,
    "redis-killed": Striker.redis_killed,
    "redis-emptied": Striker.redis_emptied,
    "connections-cut": Striker.connections_cut,
    "network-cut": Striker.network_cut,
    "store-cut": Striker.store_cut,
    "producer-killed": Striker.producer_killed,
}


def plan(seed: int, kinds: list[str], count: int) -> list[str]:
    """Which faults a round has, in order: the same for the same seed, each kind at most once."""
    return random.Random(seed).sample(kinds, min(count, len(kinds)))  # noqa: S311
