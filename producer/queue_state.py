"""Which batches of a run wait in the queue or are leased: read from Redis, the queue first.

A batch goes from the queue to a lease, so what leaves the queue while it is read shows among the leases afterwards.
"""

from typing import cast

import redis

from workers.broker import QUEUE_LISTS, UNACKED, batches_named
from workers.contract import layout
from workers.contract.names import RunKeys

_CHUNK = 1000


def taken_care_of(client: "redis.Redis", run: str) -> tuple[set[int], set[int]]:
    """Numbers of the batches with a message in the queue, and of those with a lease.

    Raises:
        redis.RedisError: Redis is away.
    """
    waiting: set[str] = set()
    for name in QUEUE_LISTS:
        for start in range(0, client.llen(name), _CHUNK):
            chunk = cast("list[bytes]", client.lrange(name, start, start + _CHUNK - 1))
            waiting.update(batch for named, batch in batches_named(chunk) if named == run)
    for _, message in client.hscan_iter(UNACKED, count=_CHUNK):
        waiting.update(batch for named, batch in batches_named([message], unacked=True) if named == run)
    leased = cast("list[bytes]", client.zrange(RunKeys(run).lease, 0, -1))
    return _numbers(waiting), _numbers({batch.decode() for batch in leased})


def _numbers(batches: set[str]) -> set[int]:
    return {parsed for batch in batches if (parsed := layout.parse_batch_label(batch)) is not None}
