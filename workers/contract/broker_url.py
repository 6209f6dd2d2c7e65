"""What FLEET_BROKER names: a Redis, one behind TLS, or the primary that Sentinels know. No I/O.

One form for all clients: redis-py, Kombu and Flower each read another one, and none the whole of it.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from workers.contract.errors import SettingsError

FORMS = (
    "redis://[user:password@]host:6379/0, rediss://… (TLS; ?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE), or "
    "sentinel://[user:password@]host:26379,host:26379/0?master=NAME[&sentinel_password=…]"
)
FILES = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_TLS = FILES | {"ssl_cert_reqs", "ssl_check_hostname"}
_OPTIONS = {"redis": frozenset[str](), "rediss": _TLS, "sentinel": frozenset({"master", "sentinel_password"})}
_PORTS = {"redis": 6379, "rediss": 6379, "sentinel": 26379}
_LARGEST_PORT = 65_535


@dataclass(frozen=True)
class BrokerUrl:
    """The parts of FLEET_BROKER. `hosts` are the Sentinels if there is a `master`, else the one Redis."""

    scheme: str
    user_info: str
    hosts: tuple[tuple[str, int], ...]
    db: int
    options: Mapping[str, str]

    @property
    def master(self) -> str:
        """The name by which Sentinels know the primary; empty without Sentinels."""
        return self.options.get("master", "")

    @property
    def username(self) -> str | None:
        """Of Redis."""
        return unquote(self.user_info.partition(":")[0]) or None

    @property
    def password(self) -> str | None:
        """Of Redis."""
        return unquote(self.user_info.partition(":")[2]) or None

    @property
    def tls(self) -> dict[str, str | bool] | None:
        """Keyword arguments of redis-py and Kombu for TLS; None without. Certificates are verified unless told otherwise."""
        if self.scheme != "rediss":
            return None
        told: dict[str, str | bool] = {"ssl_cert_reqs": "required", **self.options}
        if "ssl_check_hostname" in told:
            told["ssl_check_hostname"] = str(told["ssl_check_hostname"]).lower() not in {"false", "no", "0"}
        return told

    @property
    def celery_url(self) -> str:
        """As Kombu reads it: no options, one URL for each Sentinel."""
        user = f"{self.user_info}@" if self.user_info else ""
        return ";".join(f"{self.scheme}://{user}{_bracketed(host)}:{port}/{self.db}" for host, port in self.hosts)

    @property
    def unprotected(self) -> bool:
        """Whoever reaches the host may read and write the queue: no password, and not on the loopback."""
        return self.password is None and not all(is_loopback(host) for host, _ in self.hosts)


def parse_broker_url(url: str) -> BrokerUrl:
    """Take FLEET_BROKER apart.

    Raises:
        SettingsError: It is of no form that is known; the password is not shown.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _OPTIONS:
        raise SettingsError("FLEET_BROKER", without_password(url), FORMS)
    place, _, query = rest.partition("?")
    location, _, path = place.partition("/")
    user_info, _, hosts = location.rpartition("@")
    try:
        found = [_host(text, _PORTS[scheme]) for text in hosts.split(",")]
        if len(found) > 1 and scheme != "sentinel":
            raise ValueError("several hosts; only sentinel:// takes them")
        options = dict(parse_qsl(query, strict_parsing=True)) if query else {}
        if unknown := sorted(options.keys() - _OPTIONS[scheme]):
            raise ValueError(f"unknown option {unknown[0]}")
        if scheme == "sentinel" and not options.get("master"):
            raise ValueError("no ?master=NAME")
        return BrokerUrl(scheme, user_info, tuple(found), int(path or 0), options)
    except ValueError as error:
        raise SettingsError("FLEET_BROKER", without_password(url), f"{FORMS} ({error})") from error


def without_password(url: str) -> str:
    """A URL fit for logs and messages: user and password are replaced by `***`."""
    scheme, separator, rest = url.partition("://")
    credentials, _, place = rest.rpartition("@")  # the last one: a password may hold anything
    location, mark, query = place.partition("?")
    shown = "***" if "password" in query else query
    return f"{scheme}{separator}{'***@' if credentials else ''}{location}{mark}{shown}"


def _host(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.username is not None:
        raise ValueError("no host")
    port = default_port if parts.port is None else parts.port
    if not 0 < port <= _LARGEST_PORT:
        raise ValueError(f"port {port}")
    return parts.hostname, port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
