"""The truth about batches in Redis: who works on which, what is answered, what is done. Changed only by the scripts in `lua/`.

Each script is one atomic step on Redis' own clock and may be repeated, so a call whose answer was lost is made again until
Redis is back. Knows keys and scripts; does not know what a prompt means or where shards lie.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec
import redis.asyncio
import redis.exceptions
import structlog
import zstandard
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_delay, wait_exponential_jitter

from workers.contract import layout, names
from workers.contract.errors import BrokerUnavailable
from workers.contract.names import RunKeys
from workers.contract.schema import Completion, ShardCounts

REDIS_RETRY_FOR_S = 6 * 3600.0
"""A batch in hand waits so long for Redis; its answers would be lost otherwise."""
COMPRESS_FROM_BYTES = 1024
REAP_LIMIT = 500
"""Batches that one beat frees at most: a beat stays a short step for Redis."""

GATHER_S = 0.01
CROWD = 3
"""From so many outcomes in one trip on, the next trip waits a moment: a third of the worker's cost at a thousand a second."""

log = structlog.get_logger()
T = TypeVar("T")

_WAITED_FOR = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.NoScriptError,
)
_PASSING = ("NOREPLICAS", "MISCONF", "BUSY ", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN")
"""Refusals that redis-py has no class for: too few replicas after a failover, a full disk, a long script, …"""
_SCRIPTS = Path(__file__).parent / "lua"
_COMPLETION = msgspec.json.Decoder(Completion)
_ENCODER = msgspec.json.Encoder()
_COMPRESSOR = zstandard.ZstdCompressor(level=1)  # one for all: making it costs more than using it


def may_pass(error: BaseException) -> bool:
    """Whether Redis may take the same call a little later."""
    if isinstance(error, redis.exceptions.ResponseError) and any(word in str(error) for word in _PASSING):
        return True
    return isinstance(error, _WAITED_FOR)


Outcome = Literal["claimed", "held", "done", "paused", "cancelled", "unknown", "other_model"]


@dataclass(frozen=True)
class Claim:
    """A batch in a worker's hands. `token` fences: it differs for every claim ever made."""

    run: str
    batch: str
    token: str
    attempt: int

    @property
    def keys(self) -> RunKeys:
        """Keys of its run."""
        return RunKeys(self.run)

    @property
    def bit(self) -> int:
        """Its place in the run's bitmaps."""
        parsed = layout.parse_batch_label(self.batch)
        if parsed is None:
            raise ValueError(self.batch)
        return parsed


@dataclass(frozen=True)
class Claimed:
    """Answer to a claim. `owner` is who holds the batch, or the model that its run wants.

    If the outcome is `claimed`: `kept` holds index → completion, `deaths` index → the requests of that prompt that were in
    flight when its engine or worker died, `lapses` how many workers fell silent with the batch in hand, `errors` how many
    deliveries ended in an error of ours. `cancelled`: what is kept is to be stored, nothing to be generated.
    """

    outcome: Outcome
    owner: str = ""
    claim: Claim | None = None
    kept: Mapping[int, Completion] = field(default_factory=dict)
    deaths: Mapping[int, set[str]] = field(default_factory=dict)
    lapses: int = 0
    errors: int = 0
    cancelled: bool = False


@dataclass(frozen=True)
class Beat:
    """Answer to a beat: batches that are no longer this worker's, batches freed from silent workers, the run's status, and
    whether nothing will come of it any more.
    """

    lost: tuple[str, ...]
    freed: tuple[str, ...]
    status: str
    over: bool


def pack(completion: Completion) -> bytes:
    """A completion as kept in Redis: JSON, compressed if that pays."""
    body = _ENCODER.encode(completion)
    return body if len(body) < COMPRESS_FROM_BYTES else _COMPRESSOR.compress(body)


def unpack(payload: bytes) -> Completion:
    """The reverse of `pack`."""
    return _COMPLETION.decode(payload if payload[:1] == b"{" else zstandard.ZstdDecompressor().decompress(payload))


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Index and value of each pair in a flat reply."""
    return ((int(flat[place]), flat[place + 1]) for place in range(0, len(flat), 2))


class Ledger:
    """The ledger as one worker process uses it. All methods run on its event loop and wait while Redis is away."""

    def __init__(self, client: "redis.asyncio.Redis", worker: str, lease_s: float) -> None:
        self._redis = client
        self._worker = worker
        self._lease_ms = round(lease_s * 1000)
        self._scripts = {path.stem: client.register_script(path.read_text()) for path in _SCRIPTS.glob("*.lua")}
        self._pending: list[tuple[Claim, Completion, asyncio.Future[Completion]]] = []
        self._pending_event = asyncio.Event()
        self._leases = asyncio.Lock()

    async def claim(self, run: str, batch: str, model: str = "") -> Claimed:
        """Take a batch for one lease, with what is already answered, for an engine that serves `model` (empty: any)."""
        wanted = Claim(run, batch, f"{self._worker}#{uuid.uuid4().hex[:12]}", 0)
        keys = wanted.keys
        outcome, detail, *more = await self._call(
            "claim",
            [
                keys.state,
                keys.done,
                keys.lease,
                keys.owner,
                keys.attempts,
                keys.checkpoints(batch),
                keys.pushed,
                keys.parked,
                keys.lapses,
            ],
            [batch, wanted.bit, wanted.token, self._lease_ms, model],
        )
        if outcome != b"claimed":
            return Claimed(cast("Outcome", outcome.decode()), detail.decode())
        claim = Claim(run, batch, wanted.token, int(detail))
        lapses, kept, marks, errors, status = more
        deaths: dict[int, set[str]] = {}
        for mark in marks:
            index, _, request_id = mark.decode().partition(":")
            deaths.setdefault(int(index), set()).add(request_id)
        return Claimed(
            "claimed",
            self._worker,
            claim,
            {index: unpack(payload) for index, payload in _pairs(kept)},
            deaths,
            int(lapses),
            int(errors),
            cancelled=status == b"cancelled",
        )

    async def accuse(self, claim: Claim, requests: Mapping[str, int], *, died: bool) -> None:
        """Keep (or drop) that requests, each of the prompt at an index, were in flight when their engine or worker died."""
        if requests:
            keys = claim.keys
            marks = (f"{index}:{request_id}" for request_id, index in requests.items())
            await self._call("accuse", [keys.done, keys.checkpoints(claim.batch)], [claim.bit, int(died), *marks])

    async def checkpoint(self, claim: Claim, completion: Completion) -> Completion:
        """Keep one outcome and count it.

        Returns:
            The outcome that counts: this one, or the one that was kept before it.
        """
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._pending.append((claim, completion, future))
        self._pending_event.set()
        return await future

    async def write_checkpoints(self) -> None:
        """Write what `checkpoint` collects, until cancelled: each outcome is its own atomic step, a trip carries many."""
        script = self._scripts["checkpoint"].script
        await self._waiting(lambda: self._redis.script_load(script))
        crowded = False
        while True:
            await self._pending_event.wait()
            if crowded:  # many at once: let a few more come along
                await asyncio.sleep(GATHER_S)
            self._pending_event.clear()
            batch, self._pending = self._pending, []
            crowded = len(batch) >= CROWD
            try:
                answers = await self._waiting(lambda batch=batch: self._write(batch))  # type: ignore[misc]
            except BaseException as error:
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(BrokerUnavailable("Redis", str(error) or type(error).__name__))
                if not isinstance(error, BrokerUnavailable):
                    raise
                continue
            for (_, completion, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(unpack(answer[1]) if answer[0] == 0 else completion)

    async def _write(self, outcomes: Sequence[tuple[Claim, Completion, object]]) -> list[Any]:
        script = self._scripts["checkpoint"]
        # Not `script(client=pipeline)`: that asks Redis in a trip of its own whether it knows the script.
        pipeline = self._redis.pipeline(transaction=False)
        for claim, completion, _ in outcomes:
            keys = claim.keys
            pipeline.evalsha(
                script.sha,
                8,
                keys.done,
                keys.checkpoints(claim.batch),
                keys.open,
                keys.counts,
                keys.reasons,
                keys.flags,
                keys.workers,
                keys.series,
                claim.batch,
                claim.bit,
                completion.index,
                pack(completion),
                self._worker,
                "completed" if completion.status == "ok" else "failed",
                completion.usage.prompt_tokens,
                completion.usage.completion_tokens,
                completion.reason or "",
                round(names.SERIES_STEP_S),
                names.SERIES_LENGTH,
                *completion.flags,
            )
        try:
            return await pipeline.execute()
        except redis.exceptions.NoScriptError:  # a new or a flushed Redis; the caller tries again
            await self._redis.script_load(script.script)
            raise

    async def commit(self, claim: Claim, counts: ShardCounts, shard_bytes: int) -> tuple[bool, str]:
        """The shard is in the store: the batch is done.

        Args:
            claim: Of the batch; a lost one does no harm, the store is the truth.
            counts: What the stored shard holds; the counters are corrected to it.
            shard_bytes: Size of the stored shard.

        Returns:
            Whether it was done only now, and the run's status.
        """
        keys = claim.keys
        lasting = [key for key in keys.lasting() if key not in {keys.state, keys.done}]
        done, status = await self._call(
            "commit",
            [
                keys.state,
                keys.done,
                keys.lease,
                keys.owner,
                keys.attempts,
                keys.checkpoints(claim.batch),
                keys.open,
                keys.counts,
                keys.reasons,
                keys.flags,
                keys.series,
                keys.parked,
                keys.lapses,
                *lasting,
            ],
            [
                claim.batch,
                claim.bit,
                shard_bytes,
                _ENCODER.encode(counts),
                round(names.FINISHED_TTL_S),
                names.SERIES_LENGTH,
            ],
        )
        if status == b"complete":
            await self._waiting(lambda: self._redis.zrem(names.RUNS, claim.run))
        return bool(done), status.decode()

    async def release(self, claim: Claim, parked_because: str = "", *, error: bool = False) -> bool:
        """Give the batch back; with a cause, to nobody until a person resumes the run.

        Args:
            claim: Of the batch.
            parked_because: The cause.
            error: An error of ours ended it; too many of these park it.

        Returns:
            False if it was lost before (or given back, and that answer was lost: the sweep finds a batch without a message).
        """
        keys = claim.keys

        async def release() -> object:
            async with self._leases:  # a beat on its way would take back what it finds without an owner
                return await self._scripts["release"](
                    keys=[keys.lease, keys.owner, keys.pushed, keys.parked, keys.attempts],
                    args=[claim.batch, claim.bit, claim.token, parked_because, int(error)],
                )

        return bool(await self._waiting(release))

    async def beat(self, run: str, held: Callable[[], Sequence[Claim]]) -> Beat:
        """Renew the leases of one run. Tries once: the next beat comes soon.

        Args:
            run: Its name.
            held: Asked in the moment of the beat; without those that are being released.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        keys = RunKeys(run)
        async with self._leases:
            claims = [part for claim in held() for part in (claim.batch, claim.bit, claim.token)]
            lost, freed, status, over = await self._scripts["beat"](
                keys=[keys.lease, keys.owner, keys.done, keys.beat, keys.state, keys.lapses, keys.open],
                args=[self._lease_ms, REAP_LIMIT, round(names.BEAT_TTL_S), *claims],
            )
        return Beat(tuple(b.decode() for b in lost), tuple(b.decode() for b in freed), status.decode(), bool(over))

    async def _call(self, script: str, keys: list[str], args: list[Any]) -> Any:
        return await self._waiting(lambda: self._scripts[script](keys=keys, args=args))

    async def _waiting(self, call: Callable[[], Awaitable[T]]) -> T:
        def told(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            log.warning(
                "ledger.waiting", cause=str(error), tries=state.attempt_number, again_in_s=round(state.upcoming_sleep, 1)
            )

        retrying = AsyncRetrying(
            retry=retry_if_exception(may_pass),
            wait=wait_exponential_jitter(multiplier=0.1, max=2.0, jitter=0.3),
            stop=stop_after_delay(REDIS_RETRY_FOR_S),
            before_sleep=told,
            reraise=True,
        )

        async def one_call() -> T:  # tenacity awaits coroutine functions only
            return await call()

        try:
            return await retrying(one_call)
        except redis.exceptions.RedisError as error:
            raise BrokerUnavailable("Redis", str(error)) from error
