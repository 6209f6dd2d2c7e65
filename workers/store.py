"""Which store a URL names: `s3://bucket/prefix`, or `file:///dir` for one machine."""

from pathlib import Path
from urllib.parse import urlsplit

from workers.contract.settings import StoreSettings
from workers.object_store import ObjectInfo, ObjectStore

__all__ = ["ObjectInfo", "ObjectStore", "open_store"]


def open_store(settings: StoreSettings, url: str | None = None) -> ObjectStore:
    """The store that `FLEET_STORE` (or `url`) names. Connects to nothing yet."""
    parts = urlsplit(url or settings.store)
    if parts.scheme == "file":
        from workers.file_store import FileStore  # noqa: PLC0415  (a machine with a folder needs no boto3)

        return FileStore(Path(parts.path))
    from workers.s3 import S3Store  # noqa: PLC0415  (ditto)

    return S3Store(bucket=parts.netloc, prefix=parts.path.strip("/"), settings=settings)
