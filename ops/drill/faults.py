"""The faults of a drill: each strikes a running fleet, waits until work goes on, and repairs what a supervisor would.

A fault that would meet nothing (the run is over, a worker holds no batch) is left out and says so: it would prove nothing.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable

from ops.drill.fleet import BIN, get_json
from ops.drill.measure import Fault
from ops.drill.plan import Strike
from ops.drill.proxy import Proxy
from ops.drill.rehearsal import Rehearsal, first_asked
from ops.drill.watch import Target, Watch
from ops.quickstart.processes import ChildProcess, wait_until
from workers.contract.names import LOCK_TTL_S, RunKeys

MARGIN_S = 2.0
"""Beyond lease and beat until a batch runs elsewhere: 20 s with their defaults, DESIGN's G4."""
HANDED_BACK_WITHIN_S = 10.0
"""From the end of a drained worker until others have what it gave back."""
GIVE_UP_AFTER = 3
AT_WORK_WITHIN_S = 20.0
DEFAULT_HANG_S = 60.0
READ_WITHIN_S = 0.05
"""A request that a stopped worker has sent is read by its engine."""


class Striker:
    """Strikes one run. Each method is a kind of fault: it says what it may repeat, and waits for work to go on."""

    def __init__(self, fleet: Rehearsal, target: Target) -> None:
        self._fleet = fleet
        self._target = target
        self._run = target.run
        self._keys = RunKeys(target.run)
        self._within_s = fleet.shared.lease_s + fleet.shared.lease_renewal_s + MARGIN_S
        self._watch = Watch(fleet, target.run, GIVE_UP_AFTER * self._within_s)

    def strike(self, one: Strike) -> Fault:
        """Do it; `back_s` stays None if work did not go on in time."""
        time.sleep(one.pause_s)
        fault = Fault(one.kind, time.time(), self._within_s)
        with contextlib.suppress(TimeoutError):
            wait_until(
                lambda: self._watch.over() or all(map(self._watch.at_work, self._fleet.workers)), AT_WORK_WITHIN_S, "work"
            )
        if self._watch.over() or not all(map(self._watch.at_work, self._fleet.workers)):
            fault.left_out = "not every worker held work then: the run was nearly over"
            return fault
        fault.at = time.time()
        with contextlib.suppress(TimeoutError):
            STRIKES[one.kind](self, fault, one)
        return fault

    def _aim(self, fault: Fault, one: Strike) -> str:
        fault.target = one.target(list(self._fleet.workers))
        return fault.target

    def _frozen(self, fault: Fault, name: str) -> frozenset[str]:
        """Stop a worker, so that what it holds stands still, and look at that. Returns the prompts in flight."""
        self._fleet.workers[name].signal(signal.SIGSTOP)
        fault.at = time.time()
        time.sleep(READ_WITHIN_S)
        in_flight = self._fleet.in_flight(name, fault.at)
        fault.may_repeat = len(in_flight)
        held = {digest for batch in self._fleet.held_by(name, self._run) for digest in self._target.digests_of(batch)}
        fault.touched = in_flight | held
        return in_flight

    def _back_elsewhere(self, fault: Fault, name: str, tokens: dict[str, bytes]) -> None:
        """Wait until others have every batch, and have begun a prompt of them."""
        self._watch.until(lambda: self._watch.freed(tokens), "its batches freed")
        fault.freed_s = time.time() - fault.at
        self._watch.until(lambda: self._watch.taken_up(tokens), "its batches taken up")
        fault.all_back_s = time.time() - fault.at
        others = [other for other in self._fleet.workers if other != name]

        def begun() -> bool:
            first = first_asked(self._fleet, others, fault.touched, fault.at)
            fault.back_s = None if first is None else first - fault.at
            return first is not None

        self._watch.until(begun, "a prompt of its batches begun")
        if fault.back_s is None:  # the run is over, so all were
            fault.back_s = time.time() - fault.at

    def worker_killed(self, fault: Fault, one: Strike) -> None:
        """SIGKILL of a worker; others take its batches up."""
        name = self._aim(fault, one)
        try:
            self._frozen(fault, name)
            tokens = self._watch.tokens_of(name)
            self._fleet.workers[name].kill()
            self._back_elsewhere(fault, name, tokens)
        finally:
            self._fleet.restart_worker(name)

    def worker_paused(self, fault: Fault, one: Strike) -> None:
        """SIGSTOP of a worker until others have its batches. When it wakes, it may fill its slots once before it is told."""
        name = self._aim(fault, one)
        try:
            self._frozen(fault, name)
            fault.may_repeat += self._fleet.slots_of(name)
            self._back_elsewhere(fault, name, self._watch.tokens_of(name))
        finally:
            self._fleet.workers[name].signal(signal.SIGCONT)

    def worker_stopped(self, fault: Fault, one: Strike) -> None:
        """SIGTERM of a worker: it drains, ends, and others go on at once. Time counts from its end."""
        name, worker = self._aim(fault, one), self._fleet.workers[one.target(list(self._fleet.workers))]
        fault.within_s = HANDED_BACK_WITHIN_S
        try:
            self._frozen(fault, name)
            fault.may_repeat = max(fault.may_repeat, self._fleet.slots_of(name))
            tokens, begun = self._watch.tokens_of(name), time.monotonic()
            worker.signal(signal.SIGTERM)
            worker.signal(signal.SIGCONT)
            wait_until(lambda: not worker.alive(), self._fleet.drain_s + self._within_s, "the worker gone")
            fault.outage_s = time.monotonic() - begun
            self._watch.until(lambda: self._watch.taken_up(tokens), "what it handed back taken up")
            fault.back_s = time.monotonic() - begun - fault.outage_s
        finally:
            self._fleet.restart_worker(name)

    def engine_killed(self, fault: Fault, one: Strike) -> None:
        """SIGKILL of an engine, which its supervisor starts again."""
        name = self._aim(fault, one)
        engine = self._fleet.engine_processes[name]
        self._frozen(fault, name)
        self._fleet.remember(name)
        engine.kill()
        self._fleet.workers[name].signal(signal.SIGCONT)
        time.sleep(one.lasts_s)
        engine.start()
        fault.outage_s = time.time() - fault.at
        begun = time.monotonic()
        self._watch.until(lambda: bool(self._fleet.asked_of(name)), "its engine asked again")
        fault.back_s = time.monotonic() - begun

    def engine_hung(self, fault: Fault, one: Strike) -> None:
        """An engine gives no token for some seconds."""
        name = self._aim(fault, one)
        if one.lasts_s >= float(self._fleet.settings.get("FLEET_HANG_S") or DEFAULT_HANG_S):
            fault.may_repeat = self._fleet.slots_of(name)
        self._fleet.faults(name, {"kind": "hang", "for_s": one.lasts_s})
        self._outage(fault, one)
        finished = self._finished(name)
        begun = time.monotonic()
        self._watch.until(lambda: self._finished(name) > finished, "an answer of the engine")
        fault.back_s = time.monotonic() - begun
        self._fleet.faults(name)

    def _finished(self, name: str) -> int:
        return int(get_json(f"{self._fleet.engines[name]}/simulator/state")["finished"])

    def _outage(self, fault: Fault, one: Strike) -> None:
        time.sleep(one.lasts_s)
        fault.outage_s = one.lasts_s

    def redis_killed(self, fault: Fault, one: Strike) -> None:
        """SIGKILL of Redis, which comes back with its append-only file."""
        self._fleet.redis_process.kill()
        self._outage(fault, one)
        self._fleet.redis_process.start()
        fault.back_s = self._watch.goes_on()

    def redis_emptied(self, fault: Fault, _: Strike) -> None:
        """FLUSHALL, and `producer resume`. Answers of batches that no worker holds just then are generated again."""
        client = self._fleet.client
        opened: set[bytes] = client.smembers(self._keys.open)  # type: ignore[assignment]
        kept = sum(int(client.hlen(self._keys.checkpoints(batch.decode()))) for batch in opened)
        fault.may_repeat = kept + sum(map(self._fleet.slots_of, self._fleet.workers))
        fault.touched = frozenset(digest for batch in opened for digest in self._target.digests_of(batch.decode()))
        client.flushall()
        done = self._fleet.producer("resume", self._run, "--json")
        if done.code == 0:
            fault.back_s = time.time() - fault.at + self._watch.goes_on()

    def connections_cut(self, fault: Fault, _: Strike) -> None:
        """CLIENT KILL of every client of Redis."""
        for kind in ("normal", "pubsub"):
            self._fleet.client.client_kill_filter(_type=kind)
        fault.back_s = self._watch.goes_on()

    def network_cut(self, fault: Fault, one: Strike) -> None:
        """Connections to Redis are reset and refused for some seconds."""
        self._without(fault, one, self._fleet.broker_proxy, Proxy.cut)

    def network_stalled(self, fault: Fault, one: Strike) -> None:
        """Connections to Redis stand for some seconds, and nothing passes."""
        self._without(fault, one, self._fleet.broker_proxy, Proxy.stall)

    def store_cut(self, fault: Fault, one: Strike) -> None:
        """Connections to the store are reset and refused for some seconds."""
        self._without(fault, one, self._fleet.store_proxy, Proxy.cut)

    def store_stalled(self, fault: Fault, one: Strike) -> None:
        """Connections to the store stand for some seconds, and nothing passes."""
        self._without(fault, one, self._fleet.store_proxy, Proxy.stall)

    def _without(self, fault: Fault, one: Strike, proxy: Proxy | None, how: Callable[[Proxy], None]) -> None:
        if proxy is None:
            fault.left_out = self._fleet.uncut
            return
        how(proxy)
        try:
            self._outage(fault, one)
        finally:
            proxy.restore()
        fault.back_s = self._watch.goes_on()

    def producer_killed(self, fault: Fault, one: Strike) -> None:
        """SIGKILL of `producer enqueue` in the middle of another run; the same command again completes it, after its lock."""
        run, fault.within_s = f"{self._run}-again", self._within_s + LOCK_TTL_S
        command = ["enqueue", str(self._target.spare), "--run", run, "--max-tokens", "64", "--batch-size", "2"]
        argv = [str(BIN / "producer"), *command]
        first = ChildProcess("producer", argv, self._fleet.folder / f"{run}.log", env=self._fleet.env)
        self._fleet.children.append(first)
        first.launch()
        time.sleep(one.kill_after_s)
        if not first.alive():
            fault.left_out = f"enqueue had ended {one.kill_after_s:.1f} s after its start"
        first.kill()
        begun = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = self._fleet.producer(*command, "--json")
            if done.code == 0:
                fault.run, fault.back_s = run, time.monotonic() - begun


STRIKES: dict[str, Callable[[Striker, Fault, Strike], None]] = {
    "worker-killed": Striker.worker_killed,
    "worker-paused": Striker.worker_paused,
    "worker-stopped": Striker.worker_stopped,
    "engine-killed": Striker.engine_killed,
    "engine-hung": Striker.engine_hung,
    "redis-killed": Striker.redis_killed,
    "redis-emptied": Striker.redis_emptied,
    "connections-cut": Striker.connections_cut,
    "network-cut": Striker.network_cut,
    "network-stalled": Striker.network_stalled,
    "store-cut": Striker.store_cut,
    "store-stalled": Striker.store_stalled,
    "producer-killed": Striker.producer_killed,
}
