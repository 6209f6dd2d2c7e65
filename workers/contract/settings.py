"""Settings that processes must agree on, and how any settings are read from an environment mapping.

Knows names, defaults, limits and meanings. Does not read `os.environ`: the outermost function of a process passes it in.
`FleetSettings` here is for every process; `WorkerSettings` (workers/settings.py) differs per host.
"""

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from workers.contract.broker_url import BrokerUrl, parse_broker_url, without_password
from workers.contract.errors import SettingsError
from workers.contract.wording import mistake_of

S = TypeVar("S", bound=msgspec.Struct)


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a process needs to know that reads the store only."""

    store: Annotated[
        str,
        Meta(
            title="FLEET_STORE",
            description="`s3://bucket/prefix`, or `file:///dir` for one machine",
            pattern=r"^(s3://[^/]+|file:///)",
        ),
    ]
    s3_storage_class: Annotated[
        str | None, Meta(title="FLEET_S3_STORAGE_CLASS", description="storage class of every object written to S3")
    ] = None
    s3_sse: Annotated[
        str | None, Meta(title="FLEET_S3_SSE", description="server-side encryption of S3 objects: `AES256` or `aws:kms`")
    ] = None
    s3_sse_kms_key: Annotated[
        str | None, Meta(title="FLEET_S3_SSE_KMS_KEY", description="key id for `FLEET_S3_SSE=aws:kms`")
    ] = None
    s3_acl: Annotated[str | None, Meta(title="FLEET_S3_ACL", description="canned ACL of S3 objects")] = None
    s3_old_checksums: Annotated[
        bool,
        Meta(title="FLEET_S3_OLD_CHECKSUMS", description="`true` for S3 servers that refuse boto3's newer checksum headers"),
    ] = False
    log: Annotated[
        typing.Literal["json", "console"], Meta(title="FLEET_LOG", description="`json`, or `console` for people")
    ] = "console"
    log_level: Annotated[
        typing.Literal["debug", "info", "warning", "error"],
        Meta(title="FLEET_LOG_LEVEL", description="the least that is logged"),
    ] = "info"


class FleetSettings(StoreSettings, frozen=True, kw_only=True):
    """What producer, workers and aggregator must agree on."""

    broker: Annotated[
        str,
        Meta(title="FLEET_BROKER", description="Redis, `redis://host:6379/0`; `rediss://` for TLS; `sentinel://`"),
    ]
    lease_s: Annotated[
        float,
        Meta(
            title="FLEET_LEASE_S",
            description="a batch runs elsewhere when its worker is silent for so long",
            ge=1.0,
            le=86_400.0,
        ),
    ] = 15.0
    lease_renewal_s: Annotated[
        float, Meta(title="FLEET_LEASE_RENEWAL_S", description="how often a worker renews its leases", ge=0.1)
    ] = 3.0

    @property
    def broker_url(self) -> BrokerUrl:
        """The broker's parts."""
        return parse_broker_url(self.broker)

    def __post_init__(self) -> None:
        parse_broker_url(self.broker)
        if self.lease_renewal_s * 3 > self.lease_s:  # two renewals may fail before another worker may start the batch
            raise SettingsError(
                "FLEET_LEASE_RENEWAL_S", self.lease_renewal_s, f"at most a third of FLEET_LEASE_S={self.lease_s}"
            )


@dataclass(frozen=True)
class SettingRow:
    """One line of the table of settings: name in the environment, default as text (None: required), meaning."""

    name: str
    field: str
    default: str | None
    meaning: str
    required: bool


def setting_rows(kind: type[msgspec.Struct]) -> Iterator[SettingRow]:
    """The settings of a class, in order; README's table and the reader below both come from here."""
    for info in msgspec.structs.fields(kind):
        meta = _meta(info.type)
        required = info.required
        default = None if required or info.default is None else str(info.default)
        yield SettingRow(str(meta.title), info.name, default, str(meta.description), required)


def _meta(annotation: object) -> Meta:
    for part in getattr(annotation, "__metadata__", ()):
        if isinstance(part, Meta) and part.title:
            return part
    raise TypeError(f"{annotation} has no Meta(title=…, description=…)")


def read_settings(kind: type[S], environment: Mapping[str, str]) -> S:
    """Read one class of settings.

    Args:
        kind: A struct whose fields carry `Meta(title=<variable>, description=…)`.
        environment: Usually `os.environ`; an empty value counts as not set.

    Raises:
        SettingsError: A variable is missing, or not what its type allows; names the variable.
    """
    rows = list(setting_rows(kind))
    given = {row.field: environment[row.name] for row in rows if environment.get(row.name)}
    for row in rows:
        if row.required and row.field not in given:
            raise SettingsError(row.name, None, row.meaning)
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, SettingsError):
            raise error.__cause__ from None
        at_fault = next((row for row in rows if str(error).endswith(f"$.{row.field}`")), None)
        if at_fault is None:
            raise
        expected = _expected(error, kind, at_fault)
        raise SettingsError(at_fault.name, without_password(given[at_fault.field]), expected) from error


def _expected(error: msgspec.ValidationError, kind: type[msgspec.Struct], row: SettingRow) -> str:
    choices = typing.get_args(typing.get_type_hints(kind)[row.field])
    mistake = mistake_of(error)
    told = f"one of {', '.join(map(str, choices))}" if choices and mistake is None else mistake.expected if mistake else ""
    return f"{told} ({row.meaning})" if told else row.meaning


def check_url(name: str, url: str) -> None:
    """A host, and a port that exists if one is named.

    Raises:
        SettingsError: See there.
    """
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            raise ValueError("no host, or port 0")
    except ValueError as error:
        raise SettingsError(name, without_password(url), f"scheme://host:port ({error})") from error
