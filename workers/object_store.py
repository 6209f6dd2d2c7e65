"""The seam to the object store: what every store can do.

Two stores exist: S3 (`workers/s3.py`) and a folder of one machine (`workers/file_store.py`). Both pass the tests in
`tests/integration/test_stores.py`. All calls block: asyncio code runs them in threads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class ObjectInfo:
    """What is known of an object without its body. `metadata` is filled by `head` and `get`, not by `list`."""

    key: str
    size_bytes: int
    metadata: Mapping[str, str] = field(default_factory=dict)


class ObjectStore(Protocol):
    """Objects by key, below the prefix that the store was opened with.

    Every method raises `StoreUnavailable` for what may pass (`StoreBusy` and `StoreFull` name two causes) and `StoreDenied` for
    what will not; `get` also `ShardCorrupt` where the store itself finds that a body is not what was written.
    """

    url: str

    def put_new(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> bool:
        """Write an object unless the key exists; True if this call wrote it. Atomic: nobody sees half an object."""

    def put(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Write an object, replacing what is there."""

    def put_file(self, key: str, path: Path) -> None:
        """Write an object of any size from a file, replacing what is there."""

    def get(self, key: str) -> bytes | None:
        """The body, or None if there is no such object."""

    def get_with_metadata(self, key: str) -> tuple[bytes, Mapping[str, str]] | None:
        """Body and metadata in one request, or None."""

    def head(self, key: str) -> ObjectInfo | None:
        """Size and metadata, or None if there is no such object."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, sorted by key, without metadata."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Distinct beginnings `<prefix><name>/` of keys, sorted: one level, however many objects lie below."""

    def delete(self, key: str) -> None:
        """Remove an object; nothing happens if there is none."""

    def check(self) -> str | None:
        """Prove that the store can be read and written; a sentence if it can only do so in a weaker way, else None."""
