"""One producer at a time changes what is queued of a run: the run's enqueue lock in Redis, renewed while it is held."""

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import redis
import structlog

from workers.contract import names
from workers.contract.errors import FleetError
from workers.contract.names import RunKeys

RENEW_EVERY_S = names.LOCK_TTL_S / 6
"""Five renewals may fail before another producer may begin."""

_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"

log = structlog.get_logger()


class RunBusy(FleetError):
    """Another producer enqueues or resumes the run now."""

    def __init__(self, run: str, holder: str) -> None:
        super().__init__(run, holder)
        self.run, self.holder = run, holder

    def __str__(self) -> str:
        return (
            f"run {self.run}: {self.holder} enqueues or resumes it now; wait until that has ended "
            f"(a producer that died counts as ended after {names.LOCK_TTL_S:g} s)"
        )


class LockLost(FleetError):
    """The lock lapsed while its holder was away: another producer may be at the run."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run

    def __str__(self) -> str:
        return (
            f"run {self.run}: this producer lost its lock (silent for more than {names.LOCK_TTL_S:g} s, or Redis was emptied); "
            "it writes nothing more, give the same command again"
        )


class RunLock:
    """A lock that is held, as far as Redis knows."""

    def __init__(self, client: "redis.Redis", run: str, token: str) -> None:
        self._client, self._run, self._token = client, run, token

    def check(self) -> None:
        """Make sure of it.

        Raises:
            LockLost: It is another's, or nobody's.
        """
        if self._client.get(RunKeys(self._run).enqueue) != self._token.encode():
            raise LockLost(self._run)


@contextmanager
def run_lock(client: "redis.Redis", run: str) -> Iterator[RunLock]:
    """Hold the lock of a run.

    Raises:
        RunBusy: Another producer holds it.
        redis.RedisError: Redis is away.
    """
    key = RunKeys(run).enqueue
    token = f"{socket.gethostname()} pid {os.getpid()} {uuid.uuid4().hex[:8]}"
    ttl_ms = round(names.LOCK_TTL_S * 1000)
    if not client.set(key, token, nx=True, px=ttl_ms):
        holder = client.get(key)
        if holder != token.encode():  # else the answer to a first try was lost
            raise RunBusy(run, holder.rpartition(b" ")[0].decode() if isinstance(holder, bytes) else "another producer")
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEW_EVERY_S):
            try:
                client.eval(_RENEW, 1, key, token, str(ttl_ms))
            except redis.RedisError as error:
                log.warning("lock.renewal_failed", run=run, cause=str(error), next=f"again in {RENEW_EVERY_S:g} s")

    thread = threading.Thread(target=renew, name="lock", daemon=True)
    thread.start()
    try:
        yield RunLock(client, run, token)
    finally:
        ended.set()
        thread.join()
        client.eval(_RELEASE, 1, key, token)
