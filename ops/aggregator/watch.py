"""The aggregator's loop: look, keep, predict, publish. Whatever it holds in memory, it has again in seconds after a restart."""

import asyncio
import contextlib
import time
from collections.abc import Mapping

import msgspec
import redis
import structlog

from ops.aggregator.backtest import Prediction, due
from ops.aggregator.figures import fleet_document
from ops.aggregator.history import History
from ops.aggregator.look import Look, known_runs, look
from workers.contract import layout
from workers.contract.errors import StoreDenied, StoreUnavailable
from workers.contract.names import RunKeys
from workers.object_store import ObjectStore
from workers.progress.figures import Document, samples_until_now, time_left
from workers.progress.run_state import RunState

LOOK_EVERY_S = 2.0
FIND_RUNS_EVERY_S = 30.0
PUBLISH_EVERY_S = 30.0

log = structlog.get_logger()


class Watch:
    """Looks at Redis every two seconds until cancelled; `document` is the newest, None before the first."""

    def __init__(self, client: "redis.Redis", store: ObjectStore, usd_per_hour: float | None) -> None:
        self._client = client
        self._store = store
        self._usd_per_hour = usd_per_hour
        self._history = History()
        self._known: frozenset[str] = frozenset()
        self._found_at = self._published_at = float("-inf")
        self._published_status: dict[str, str] = {}
        self.document: Document | None = None
        self.problem = ""

    async def watch(self) -> None:
        """Look, again and again; a Redis or store that is away is told and waited for."""
        while True:
            begun = time.monotonic()
            try:
                seen = await asyncio.to_thread(self._look)
                await asyncio.to_thread(self._publish, seen)
                self.problem = ""
            except (redis.RedisError, StoreUnavailable, StoreDenied) as error:
                if not self.problem:
                    log.warning("aggregator.waits", cause=str(error), next=f"again every {LOOK_EVERY_S:g} s")
                self.problem = str(error)
            await asyncio.sleep(max(0.1, LOOK_EVERY_S - (time.monotonic() - begun)))

    def _look(self) -> Look:
        if time.monotonic() - self._found_at >= FIND_RUNS_EVERY_S:
            self._known = known_runs(self._client)
            self._found_at = time.monotonic()
        seen = look(self._client, self._known)
        self._known = frozenset(state.run for state in seen.runs)  # a run that ends is not under way any more, and stays known
        self._history.add(seen.at_s, seen.workers)
        for state in seen.runs:
            self._predict(state, seen.predictions.get(state.run, {}))
        self.document = fleet_document(seen, self._history, self._usd_per_hour)
        return seen

    def _predict(self, state: RunState, made: Mapping[str, str]) -> None:
        if state.status != "running" or not state.total:
            return
        mark = due(state.completed + state.failed, state.total, map(int, made))
        left = None if mark is None else time_left(state, samples_until_now(state))
        if mark is None or left is None:
            return
        said = Prediction(mark, round(state.now_s, 1), round(left.p50, 1), None if left.p90 is None else round(left.p90, 1))
        self._client.hsetnx(RunKeys(state.run).predictions, str(mark), msgspec.json.encode(said))

    def _publish(self, seen: Look) -> None:
        """progress.json of each run that moves, and once more when its status changes."""
        every = time.monotonic() - self._published_at >= PUBLISH_EVERY_S
        documents = {} if self.document is None else {str(one["run"]): one for one in self.document["runs"]}  # type: ignore[attr-defined]
        for state in seen.runs:
            changed = self._published_status.get(state.run) != state.status
            if changed or (every and not state.ended):
                self._store.put(layout.progress(state.run), msgspec.json.encode(documents[state.run]))
                self._published_status[state.run] = state.status
        if every:
            self._published_at = time.monotonic()


async def cancelled(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
