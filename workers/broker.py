"""Connections to Redis, and what waits in the queue. The only place that knows how Kombu keeps messages in Redis.

Kombu 5.7: a queue is one list per priority step, `q` for step 0 and `q\\x06\\x16<step>` for the others; a message that was
taken and not yet acknowledged lies in the hash `unacked`. Source: kombu/transport/redis.py.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from workers.contract import names
from workers.contract.broker_url import FILES, BrokerUrl, without_password
from workers.contract.errors import BrokerDenied, BrokerUnavailable, BrokerUntrusted, SettingsError
from workers.contract.settings import FleetSettings

QUEUE_LISTS = tuple(names.QUEUE if step == 0 else f"{names.QUEUE}\x06\x16{step}" for step in range(names.PRIORITY_LEVELS))
UNACKED = "unacked"

_SOCKET: dict[str, Any] = {
    "socket_timeout": 10.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
    "health_check_interval": 15,
}
DENIED = (redis.AuthenticationError, redis.exceptions.NoPermissionError)
_DROPPED = (redis.ConnectionError, redis.BusyLoadingError)
_RETRIES = 8


def connect(settings: FleetSettings) -> "redis.Redis":
    """A client for commands; a dropped connection is made again for about ten seconds before it is an error.

    A Redis that takes connections and does not answer is an error after ten seconds, too.
    """
    return _client(settings.broker_url, Retry(_backoff(), retries=_RETRIES, supported_errors=_DROPPED))


def connect_patiently(settings: FleetSettings) -> "redis.Redis":
    """A client for a command that works for hours: it waits a minute and more for a Redis that stands still.

    Raises:
        BrokerUnavailable, BrokerDenied: It does not answer now.
    """
    with broker_errors(settings), connect(settings) as first:
        first.ping()
    return _client(settings.broker_url, Retry(_backoff(), retries=_RETRIES, supported_errors=(*_DROPPED, redis.TimeoutError)))


def _backoff() -> ExponentialWithJitterBackoff:
    return ExponentialWithJitterBackoff(base=0.05, cap=2.0)


def connect_async(settings: FleetSettings) -> "redis.asyncio.Redis":
    """The same for a worker's loop, without waiting: the ledger decides how long it tries."""
    retry = AsyncRetry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), retries=1)
    place = settings.broker_url
    options: dict[str, Any] = {"retry": retry, "retry_on_error": [*_DROPPED, redis.TimeoutError], **_SOCKET}
    if place.master:
        guards: Any = redis.asyncio.sentinel.Sentinel(place.hosts, sentinel_kwargs=sentinel_options(place))  # type: ignore[no-untyped-call]
        found: redis.asyncio.Redis = guards.master_for(place.master, **_account(place), **options)
        return found
    tls = _tls(place)
    return redis.asyncio.Redis.from_url(place.celery_url, **options, **tls)


def sentinel_options(place: BrokerUrl) -> dict[str, Any]:
    """For connections to the Sentinels themselves; redis-py and Kombu take the same."""
    return {"password": place.options.get("sentinel_password"), "socket_timeout": 2.0, "socket_connect_timeout": 2.0}


def _client(place: BrokerUrl, retry: Retry) -> "redis.Redis":
    options: dict[str, Any] = {"retry": retry, **_SOCKET}
    if place.master:
        guards: Any = redis.sentinel.Sentinel(place.hosts, sentinel_kwargs=sentinel_options(place))  # type: ignore[no-untyped-call]
        found: redis.Redis = guards.master_for(place.master, **_account(place), **options)
        return found
    tls = _tls(place)
    return redis.Redis.from_url(place.celery_url, **options, **tls)


def _tls(place: BrokerUrl) -> dict[str, Any]:
    for name, path in place.options.items():
        if name in FILES and not Path(path).is_file():
            raise SettingsError(f"FLEET_BROKER: {name}", path, "a file that can be read")
    return dict(place.tls or {})


def _account(place: BrokerUrl) -> dict[str, Any]:
    return {"db": place.db, "username": place.username, "password": place.password}


@contextmanager
def broker_errors(settings: FleetSettings) -> Iterator[None]:
    """Turn Redis' own errors into `BrokerUnavailable`, `BrokerDenied` and `BrokerUntrusted`."""
    try:
        yield
    except DENIED as error:
        cause = "it asks for a password" if "HELLO" in str(error) or "NOAUTH" in str(error) else str(error)
        raise BrokerDenied(without_password(settings.broker), cause) from error
    except redis.RedisError as error:
        cause = str(error).rstrip(".") or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in cause:
            raise BrokerUntrusted(without_password(settings.broker), cause) from error
        raise BrokerUnavailable(without_password(settings.broker), cause) from error


class _Headers(msgspec.Struct):
    id: str


class _Envelope(msgspec.Struct):
    headers: _Headers


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_UNACKED = msgspec.json.Decoder(tuple[_Envelope, msgspec.Raw, msgspec.Raw])


def batches_named(messages: Iterable[bytes], *, unacked: bool = False) -> Iterator[tuple[str, str]]:
    """Run and batch of each raw message; a message that is not ours names nothing."""
    for raw in messages:
        try:
            envelope = _UNACKED.decode(raw)[0] if unacked else _ENVELOPE.decode(raw)
        except msgspec.MsgspecError:
            continue
        named = names.parse_task_id(envelope.headers.id)
        if named is not None:
            yield named
