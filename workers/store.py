"""Which store a URL names: `s3://bucket/prefix`, or `file:///dir` for one machine."""

from pathlib import Path
from urllib.parse import urlsplit

from workers.contract.settings import StoreSettings
from workers.object_store import ObjectInfo, ObjectStore

__all__ = ["ObjectInfo", "ObjectStore", "open_store"]


def open_store(settings: StoreSettings, url: str | None = None, *, patient: bool = True) -> ObjectStore:
    """The store that `FLEET_STORE` (or `url`) names. Connects to nothing yet.

    Args:
        settings: Of the process.
        url: Another store.
        patient: Go on asking a store that wants fewer requests, for minutes; else who calls does that.
    """
    parts = urlsplit(url or settings.store)
    if parts.scheme == "file":
        from workers.file_store import FileStore  # noqa: PLC0415  (a machine with a folder needs no boto3)

        return FileStore(Path(parts.path))
    from workers.s3 import BUSY_FOR_S, S3Store  # noqa: PLC0415  (ditto)

    return S3Store(parts.netloc, parts.path.strip("/"), settings, BUSY_FOR_S if patient else 0.0)
