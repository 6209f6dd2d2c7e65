"""The object store in S3, through boto3. The only place that knows S3's calls and vendors' differences.

Put-if-absent is S3's own conditional write (`If-None-Match: *`). Where a server ignores it, `check` says so and writes are
checked by reading first, which leaves a window: two workers may both write, with bodies of the same meaning.
"""

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import boto3
import structlog
from boto3.exceptions import S3UploadFailedError
from botocore.config import Config
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import BotoCoreError, ClientError, FlexibleChecksumError
from tenacity import RetryCallState, retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from workers.contract.errors import ShardCorrupt, StoreBusy, StoreDenied, StoreUnavailable
from workers.contract.settings import StoreSettings
from workers.object_store import ObjectInfo
from workers.s3_answers import ABSENT, LOST_RACE, NO_CREDENTIALS, SPOILED, UNSUPPORTED, cause_of, code_of, kind_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Checksums = Literal["when_required", "when_supported"]

READS = 3
READ_TIMEOUT_S = 20.0
"""Without one byte of an answer. A request that is given up may have been done: put-if-absent makes a second one harmless."""
BUSY_FOR_S = 300.0
"""A command goes on asking a store that wants fewer requests; a worker asks again itself, and tells why it waits."""
TRIES, TRIES_OF_WORKER = 4, 2
"""By boto3, before anybody is told. A worker does not sleep in its few threads: it asks again itself."""
MAX_CONNECTIONS = 32
"""Shards are written by a few threads at a time; boto3's default of 10 makes them wait for each other."""


log = structlog.get_logger()


def _busy_for_long(state: RetryCallState) -> bool:
    store: S3Store = state.args[0]
    return (state.seconds_since_start or 0.0) >= store.busy_for_s


def _tell_busy(state: RetryCallState) -> None:
    cause = str(state.outcome.exception()) if state.outcome else "?"
    log.warning("store.busy", cause=cause, tries=state.attempt_number, again_in_s=round(state.upcoming_sleep, 1))


_patiently = retry(
    retry=retry_if_exception_type(StoreBusy),
    stop=_busy_for_long,
    wait=wait_random_exponential(multiplier=1.0, max=20.0),
    before_sleep=_tell_busy,
    reraise=True,
)


class S3Store:
    """See `ObjectStore`. Credentials, region and endpoint come from boto3's own chain (`AWS_*`, profiles, instance role)."""

    def __init__(self, bucket: str, prefix: str, settings: StoreSettings, busy_for_s: float = BUSY_FOR_S) -> None:
        self.bucket = bucket
        self.busy_for_s = busy_for_s
        self.prefix = f"{prefix}/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._settings = settings
        self._conditional = True
        self._client_lock = threading.Lock()
        self._made: S3Client | None = None
        self._credentials: ReadOnlyCredentials | None = None
        self._denied = False

    @property
    def _client(self) -> "S3Client":
        with self._client_lock:
            if self._made is None or self._has_outlived_credentials():
                checksums: Checksums = "when_required" if self._settings.s3_old_checksums else "when_supported"
                config = Config(
                    signature_version="s3v4",
                    connect_timeout=10,
                    read_timeout=READ_TIMEOUT_S,
                    max_pool_connections=MAX_CONNECTIONS,
                    retries={"mode": "standard", "total_max_attempts": TRIES if self.busy_for_s else TRIES_OF_WORKER},
                    request_checksum_calculation=checksums,
                    response_checksum_validation=checksums,
                    s3={"addressing_style": "path"} if self._custom_endpoint() else {},
                )
                session = boto3.session.Session()
                self._credentials = _credentials_of(session)
                self._made = session.client("s3", config=config, region_name=session.region_name or "us-east-1")
            return self._made

    def _has_outlived_credentials(self) -> bool:
        """Whether the client was denied, and the credentials that are found now are others: the client is made anew then.

        Not at each denial: that takes a tenth of a second, and every batch that waits asks again.
        """
        if not self._denied:
            return False
        self._denied = False
        return _credentials_of(boto3.session.Session()) != self._credentials

    @staticmethod
    def _custom_endpoint() -> bool:
        return "amazonaws.com" not in boto3.session.Session().client("s3", region_name="us-east-1").meta.endpoint_url

    @_patiently
    def put_new(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> bool:
        """Write unless the key exists."""
        with self._told("write", key):
            if not self._conditional and self.head(key) is not None:
                return False
            condition: dict[str, Any] = {"IfNoneMatch": "*"} if self._conditional else {}
            try:
                self._client.put_object(
                    Bucket=self.bucket,
                    Key=self._key(key),
                    Body=body,
                    Metadata=dict(metadata or {}),
                    **condition,
                    **self._extra(),
                )
            except ClientError as error:
                if code_of(error) in LOST_RACE:
                    return False
                if self._conditional and code_of(error) in UNSUPPORTED:
                    self._conditional = False
                    return self.put_new(key, body, metadata)
                raise
            return True

    @_patiently
    def put(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Write, replacing what is there."""
        with self._told("write", key):
            self._client.put_object(
                Bucket=self.bucket, Key=self._key(key), Body=body, Metadata=dict(metadata or {}), **self._extra()
            )

    @_patiently
    def put_file(self, key: str, path: Path) -> None:
        """Upload a file in parts, replacing what is there."""
        with self._told("write", key):
            self._client.upload_file(str(path), self.bucket, self._key(key), ExtraArgs=self._extra())

    def get(self, key: str) -> bytes | None:
        """The body, or None."""
        found = self.get_with_metadata(key)
        return None if found is None else found[0]

    @_patiently
    def get_with_metadata(self, key: str) -> tuple[bytes, Mapping[str, str]] | None:
        """Body and metadata in one request, or None."""
        with self._told("read", key):
            return self._object(key)

    @retry(
        retry=retry_if_exception_type(SPOILED),
        stop=stop_after_attempt(READS),
        wait=wait_random_exponential(multiplier=0.2, max=2.0),
        reraise=True,
    )
    def _object(self, key: str) -> tuple[bytes, Mapping[str, str]] | None:
        try:
            answer = self._client.get_object(Bucket=self.bucket, Key=self._key(key))
            return answer["Body"].read(), answer["Metadata"]
        except ClientError as error:
            if code_of(error) in ABSENT:
                return None
            raise

    @_patiently
    def head(self, key: str) -> ObjectInfo | None:
        """Size and metadata, or None."""
        with self._told("read", key):
            try:
                answer = self._client.head_object(Bucket=self.bucket, Key=self._key(key))
            except ClientError as error:
                if code_of(error) in ABSENT:
                    return None
                raise
            return ObjectInfo(key, answer["ContentLength"], answer["Metadata"])

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below a prefix, by key, page by page."""
        with self._told("list", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._key(prefix))
            for page in pages:
                for item in page.get("Contents", ()):
                    yield ObjectInfo(item["Key"].removeprefix(self.prefix), item["Size"])

    def folders(self, prefix: str) -> Iterator[str]:
        """One level below a prefix, by name, page by page."""
        with self._told("list", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self._key(prefix), Delimiter="/"
            )
            for page in pages:
                for item in page.get("CommonPrefixes", ()):
                    yield item["Prefix"].removeprefix(self.prefix)

    @_patiently
    def delete(self, key: str) -> None:
        """Remove, if it is there."""
        with self._told("delete", key):
            self._client.delete_object(Bucket=self.bucket, Key=self._key(key))

    def check(self) -> str | None:
        """Write one object twice, on condition that it is absent: the second write must lose."""
        key = f".fleet-check/{uuid.uuid4().hex}"
        try:
            if not self.put_new(key, b"first") and self.get(key) != b"first":  # unless its answer was lost, and it met itself
                raise StoreUnavailable(self.url, "check", "a conditional put of a new key was refused")
            if self._conditional and self.put_new(key, b"second"):
                self._conditional = False
        finally:
            self.delete(key)
        if self._conditional:
            return None
        return f"{self.url} ignores conditional writes: shards are written after a check, which two workers can pass at once"

    def _key(self, key: str) -> str:
        return self.prefix + key

    def _extra(self) -> dict[str, Any]:
        settings = self._settings
        named = {
            "StorageClass": settings.s3_storage_class,
            "ServerSideEncryption": settings.s3_sse,
            "SSEKMSKeyId": settings.s3_sse_kms_key,
            "ACL": settings.s3_acl,
        }
        return {name: value for name, value in named.items() if value is not None}

    @contextmanager
    def _told(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            kind = kind_of(error)
            if kind is StoreDenied:
                self._denied = True
            raise kind(self.url, f"{action} {key}", cause_of(error)) from error
        except NO_CREDENTIALS as error:
            self._denied = True
            raise StoreDenied(self.url, f"{action} {key}", str(error)) from error
        except FlexibleChecksumError as error:  # in every read: so it lies in the store
            raise ShardCorrupt(key, f"another checksum ({error})", "the bytes that were written") from error
        except (BotoCoreError, S3UploadFailedError) as error:
            raise StoreUnavailable(self.url, f"{action} {key}", str(error)) from error


def _credentials_of(session: "boto3.session.Session") -> ReadOnlyCredentials | None:
    found = session.get_credentials()
    return None if found is None else found.get_frozen_credentials()
