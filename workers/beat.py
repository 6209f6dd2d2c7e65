"""The heart of a worker: every few seconds it renews its leases, frees those of silent workers, and tells how it is.

Does nothing that could wait for the store or the engine: a beat that is late costs leases. The sweep runs beside it.
"""

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import Any, cast

import redis.asyncio
import redis.exceptions
import structlog

from workers.contract import names
from workers.contract.names import RunKeys
from workers.deliveries import CANCELLED, LOST, Deliveries, OpenBatch
from workers.execute import Bench
from workers.ledger import Ledger
from workers.shards import ShardRoom
from workers.sweep import SWEEP_INTERVAL_S, Sweep
from workers.telemetry import Telemetry

log = structlog.get_logger()


class Heart:
    """Beats for one worker until cancelled. While `failing`, Redis is away or refuses writes, so nothing should be taken."""

    def __init__(
        self,
        client: "redis.asyncio.Redis",
        worker: str,
        ledger: Ledger,
        deliveries: Deliveries,
        bench: Bench,
        shards: ShardRoom,
        telemetry: Telemetry,
        *,
        renewal_s: float,
        engine_grace_s: float,
    ) -> None:
        self._redis = client
        self._worker = worker
        self._ledger = ledger
        self._deliveries = deliveries
        self._bench = bench
        self._shards = shards
        self._telemetry = telemetry
        self._renewal_s = renewal_s
        self._engine_grace_s = engine_grace_s
        self._sweep = Sweep(client, worker)
        self._leave = client.register_script((Path(__file__).parent / "lua" / "leave.lua").read_text())
        self._started_at = time.time()
        self._told = False
        self._namesake = ""
        self.failing = False

    async def beat(self) -> None:
        """Renew, free, tell."""
        while True:
            begun = time.monotonic()
            try:
                await self._beat_all()
                await self._tell()
                self.failing = False
            except redis.exceptions.RedisError as error:
                self.failing = True
                log.warning("beat.failed", cause=str(error), next=f"again in {self._renewal_s:g} s; does FLEET_BROKER name it?")
            health = self._bench.health
            if not health.serves and self._deliveries.open and health.sick_for_s() >= self._engine_grace_s:
                self._deliveries.hand_back_all(f"engine sick: {health.cause}", engine_died=True)
            await asyncio.sleep(max(0.05, self._renewal_s - (time.monotonic() - begun)))

    async def sweep(self) -> None:
        """Push again what was lost in the transport."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            try:
                for lost in await self._sweep.lost_batches(await self._runs()):
                    await self._deliveries.push_again(lost.run, lost.batch)
            except redis.exceptions.RedisError as error:
                log.warning("sweep.failed", cause=str(error), next=f"again in {SWEEP_INTERVAL_S:g} s")

    async def _runs(self) -> list[str]:
        return [run.decode() for run in cast("list[bytes]", await self._redis.zrange(names.RUNS, 0, -1))]

    async def _beat_all(self) -> None:
        for run in {*await self._runs(), *(batch.claim.run for batch in self._deliveries.open.values())}:
            beat = await self._ledger.beat(run, lambda run=run: [batch.claim for batch in self._held(run)])  # type: ignore[misc]
            held = {batch.claim.batch: batch for batch in self._held(run)}
            for label in beat.lost:
                if label in held:
                    held[label].end(LOST)
            if beat.status == "cancelled":
                for batch in held.values():
                    if not batch.cancelled:  # else it was claimed to be stored, and is at it
                        batch.end(CANCELLED)
            for label in beat.freed:
                log.warning("lease.lapsed", run=run, batch=label, next="pushed again")
                self._deliveries.push_soon(run, label)
            if beat.over:
                await self._leave(keys=[names.RUNS, RunKeys(run).state], args=[run])

    def _held(self, run: str) -> list[OpenBatch]:
        return [batch for batch in self._deliveries.open.values() if batch.claim.run == run and not batch.released]

    def _state(self) -> str:
        if self._deliveries.draining:
            return "draining"
        if self._deliveries.engine_info is None:
            return "starting"
        if not self._bench.health.serves:
            return "sick"
        return "waiting" if self._shards.cause else "running"

    def _confused(self) -> str:
        return f"another worker has this name: {self._namesake}; give each its own with -n" if self._namesake else ""

    async def _tell(self) -> None:
        slots, info = self._bench.slots, self._deliveries.engine_info
        told: dict[Any, Any] = {
            "state": self._state(),
            "in_flight": slots.in_flight,
            "unstarted": slots.unstarted,
            "open_batches": len(self._deliveries.open),
            "slots": slots.limit,
            "busy_slot_seconds": round(slots.occupancy(), 3),
            "completed": self._deliveries.completed,
            "failed": self._deliveries.failed,
            "prompt_tokens": self._deliveries.prompt_tokens,
            "completion_tokens": self._deliveries.completion_tokens,
            "engine_url": self._bench.engine.url,
            "engine_version": info.version if info else "",
            "model": info.model if info else "",
            "flags_digest": info.flags_digest if info else "",
            "cause": self._bench.health.cause or self._shards.cause or self._deliveries.refuses or self._confused(),
            "unwritten": self._shards.unwritten,
            "beat_s": self._renewal_s,
            "started_at": self._started_at,
            "updated_at": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **self._telemetry.fields(),
        }
        if self._shards.last_write_s is not None:
            told["store_write_s"] = round(self._shards.last_write_s, 3)
        key = names.worker_key(self._worker)
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hmget(key, "started_at", "host", "pid")
        pipeline.delete(key)  # what is not known any more must not stand there
        pipeline.hset(key, mapping=told)
        pipeline.expire(key, round(names.WORKER_TTL_S))
        before, *_ = await pipeline.execute()
        self._look_for_namesake(*((value or b"").decode() for value in before))

    async def leave(self) -> None:
        """Say that this worker has ended: what is silent now did not die."""
        key = names.worker_key(self._worker)
        if await self._redis.hget(key, "started_at") == str(self._started_at).encode():  # else it is a namesake's
            await self._redis.delete(key)

    def _look_for_namesake(self, started_at: str, host: str, pid: str) -> None:
        """Who wrote under this worker's name since its last beat, if another one did."""
        other = f"{host}, process {pid}" if self._told and started_at not in {"", str(self._started_at)} else ""
        if other and not self._namesake:
            log.warning("worker.namesake", worker=self._worker, other=other, next="give each worker a name of its own with -n")
        self._told, self._namesake = True, other
