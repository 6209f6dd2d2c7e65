"""Let a paused or cancelled run go on. Redis knows it, so nothing is counted anew, and the store is not read."""

from pathlib import Path
from typing import cast

import redis

from producer.bitmap import Bitmap
from producer.publish import Backpressure, push_missing, settle
from producer.rebuild import Rebuilt
from workers.celery import make_app
from workers.contract import names
from workers.contract.names import RunKeys
from workers.contract.schema import Manifest
from workers.contract.settings import FleetSettings

_SCRIPT = (Path(__file__).parent / "lift.lua").read_text()
ON_HOLD = frozenset({"paused", "cancelled"})


def lift_hold(client: "redis.Redis", settings: FleetSettings, manifest: Manifest) -> tuple[Rebuilt, int] | None:
    """Let a run go on, and push the batches whose messages were dropped meanwhile; under the run's lock.

    Returns:
        The run as Redis knows it, and how many batches were pushed; None if it is not on hold.

    Raises:
        BrokerUnavailable: Redis is away; do it again.
    """
    keys = RunKeys(manifest.run)
    script = client.register_script(_SCRIPT)
    named = [keys.state, keys.parked, *(key for key in keys.lasting() if key not in {keys.state, keys.parked})]
    before = cast("bytes", script(keys=named, args=[])).decode()
    if before not in ON_HOLD:
        return None
    client.zadd(names.RUNS, {manifest.run: manifest.created_at})
    with make_app(settings) as app:
        pushed = push_missing(app, client, settings, manifest, Backpressure())
    return _as_redis_knows(client, manifest, before, settle(client, keys)), pushed


def _as_redis_knows(client: "redis.Redis", manifest: Manifest, before: str, status: str) -> Rebuilt:
    keys = RunKeys(manifest.run)
    counted = [int(count or 0) for count in cast("list[bytes | None]", client.hmget(keys.counts, "completed", "failed"))]
    return Rebuilt(
        run=manifest.run,
        status=status,
        status_before=before,
        total=manifest.prompts,
        completed=counted[0],
        failed=counted[1],
        batches=manifest.batches,
        done=Bitmap(manifest.batches, cast("bytes | None", client.get(keys.done)) or b""),
        open_batches=client.scard(keys.open),
        corrupt={},
    )
