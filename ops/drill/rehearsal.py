"""The fleet of a drill: what is the user's, what is the drill's own, which ways can be cut, and what the engines were asked."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from ops.drill.fleet import LocalFleet, get_json
from ops.drill.measure import Asked
from ops.drill.proxy import Proxy
from ops.quickstart.processes import ChildProcess, free_port
from ops.quickstart.servers import redis_server, remove_sockets, s3_server
from workers.contract.settings import FleetSettings, read_settings

ENGINE = (
    *("--max-running", "16", "--mean-tokens", "60", "--sigma", "0.8", "--cap", "400"),
    *("--tokens-per-second", "60", "--seed", "7"),
)
DEFAULT_DRAIN_S = 20.0
"""Of FLEET_DRAIN_S, which is a worker's own affair."""
ARRIVES_WITHIN_S = 0.25
"""An answer that ended so shortly before a worker died may not have been kept yet."""
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


@dataclass
class Rehearsal(LocalFleet):
    """A fleet whose ways to Redis and to the store can be cut; `store_proxy` is None, and `uncut` says why, if one cannot."""

    broker_proxy: Proxy | None = None
    store_proxy: Proxy | None = None
    uncut: str = ""
    workers: dict[str, ChildProcess] = field(default_factory=dict)
    engine_processes: dict[str, ChildProcess] = field(default_factory=dict)
    _next: dict[str, int] = field(default_factory=dict)
    _asked: list[Asked] = field(default_factory=list)

    @property
    def broker_port(self) -> int:
        """The proxy's."""
        return self.redis_port if self.broker_proxy is None else self.broker_proxy.port

    @property
    def shared(self) -> FleetSettings:
        """What the parts agree on."""
        return read_settings(FleetSettings, self.env)

    @property
    def drain_s(self) -> float:
        """How long a worker that is told to end may finish what is in flight."""
        return float(self.settings.get("FLEET_DRAIN_S") or DEFAULT_DRAIN_S)

    def begin(self, count: int) -> None:
        """Start so many engines and workers."""
        for number in range(count):
            name = f"gpu{number}"
            self.engine_processes[name] = self.engine(name, *ENGINE)
            self.workers[name] = self.launch_worker(name)
        for worker in self.workers.values():
            worker.wait_ready()

    def restart_worker(self, name: str) -> None:
        """As a supervisor would."""
        self.workers[name].kill()
        self.workers[name] = self.launch_worker(name)

    def slots_of(self, name: str) -> int:
        """Requests that a worker may have in flight, as it says itself."""
        return int(self.told_by(name).get("slots", 0))

    def asked_of(self, name: str) -> list[Asked]:
        """What an engine was asked in this round, in its present life."""
        since = self._next.get(name, 0)
        return [Asked(name, row["prompt_digest"], row["start"], row["end"]) for row in self.requests(name, since)]

    def in_flight(self, name: str, at: float) -> frozenset[str]:
        """Prompts that an engine had in work then, or answered so shortly before that the answer may not have been kept."""
        rows = self.asked_of(name)
        return frozenset(row.digest for row in rows if row.end is None or row.end >= at - ARRIVES_WITHIN_S)

    def remember(self, name: str) -> None:
        """Keep what an engine was asked, before it is killed and forgets."""
        self._asked += self.asked_of(name)
        self._next[name] = 0

    def take_asked(self) -> list[Asked]:
        """What all engines were asked in this round, which ends here."""
        asked, self._asked = self._asked, []
        for name, url in self.engines.items():
            asked += self.asked_of(name)
            self._next[name] = int(get_json(f"{url}/simulator/requests?since=1000000000")["next"])
        return asked

    def stop(self) -> None:
        """Kill what still runs."""
        super().stop()
        for proxy in (self.broker_proxy, self.store_proxy):
            if proxy is not None:
                with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                    proxy.stop()


@dataclass(frozen=True)
class StorePlace:
    """Where results go, how the parts get there, and why that way cannot be cut, if so."""

    url: str
    environment: dict[str, str]
    proxy: Proxy | None
    uncut: str


def users_store(url: str, environment: Mapping[str, str]) -> StorePlace:
    """The store of FLEET_STORE: behind a proxy if it is S3 at an endpoint that speaks plain HTTP."""
    endpoint = next((environment[name] for name in ENDPOINTS if environment.get(name)), "")
    parts = urlsplit(endpoint)
    if not url.startswith("s3://"):
        return StorePlace(url, {}, None, "FLEET_STORE is a folder, and no network leads there")
    if not endpoint:
        return StorePlace(url, {}, None, "AWS_ENDPOINT_URL names no server that a proxy could stand before")
    if parts.scheme != "http" or not parts.hostname:
        return StorePlace(url, {}, None, "a proxy cannot stand before an endpoint with TLS")
    proxy = Proxy(parts.port or 80, parts.hostname).start()
    return StorePlace(url, dict.fromkeys(ENDPOINTS, f"http://127.0.0.1:{proxy.port}{parts.path}"), proxy, "")


@contextlib.contextmanager
def own_s3(folder: Path) -> Iterator[StorePlace]:
    """An S3 server of the drill's own behind a proxy."""
    server, access = s3_server(folder / "s3")
    try:
        server.start()
        proxy = Proxy(int(access.endpoint.rsplit(":", 1)[1])).start()
        place = dict.fromkeys(ENDPOINTS, f"http://127.0.0.1:{proxy.port}")
        yield StorePlace(f"s3://{access.bucket}/drill", {**access.environment, **place}, proxy, "")
    finally:
        server.kill()
        remove_sockets(server.argv)


@contextlib.contextmanager
def store_of(folder: Path, environment: Mapping[str, str], *, with_s3: bool) -> Iterator[StorePlace]:
    """The store of a drill: FLEET_STORE, else an own S3 server if asked for, else a folder."""
    if url := environment.get("FLEET_STORE"):
        yield users_store(url, environment)
    elif with_s3:
        with own_s3(folder) as place:
            yield place
    else:
        yield StorePlace(
            f"file://{folder / 'store'}", {}, None, "the store is a folder; --s3 starts a server that can be cut off"
        )


@contextlib.contextmanager
def rehearsal(folder: Path, workers: int, environment: Mapping[str, str], *, with_s3: bool) -> Iterator[Rehearsal]:
    """A fleet with its own Redis and the user's other settings, started, and stopped at the end whatever happens.

    Raises:
        SettingsError: The user's settings contradict each other.
        ChildFailed: A part did not start.
    """
    ours = {"FLEET_STORE", "FLEET_BROKER"}
    settings = {name: value for name, value in environment.items() if name.startswith("FLEET_") and value and name not in ours}
    with store_of(folder, environment, with_s3=with_s3) as store:
        port = free_port()
        redis = redis_server(folder / "redis", port)
        fleet = Rehearsal(
            folder, store.url, store.environment, redis, port, settings, store_proxy=store.proxy, uncut=store.uncut
        )
        try:
            _ = fleet.shared  # a contradiction is told before anything starts
            redis.start()
            fleet.broker_proxy = Proxy(port).start()
            fleet.begin(workers)
            yield fleet
        finally:
            fleet.stop()


def first_asked(fleet: Rehearsal, names: Sequence[str], digests: frozenset[str], after: float) -> float | None:
    """When one of these prompts was first begun at one of these engines after a moment; None if not yet."""
    starts: list[float] = []
    for name in names:
        with contextlib.suppress(httpx.HTTPError):
            starts += [row.start for row in fleet.asked_of(name) if row.start > after and row.digest in digests]
    return min(starts, default=None)
