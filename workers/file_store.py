"""The object store in a folder: `file:///dir`, for one machine.

An object is the file of its key; its metadata lies beside it under `.meta/`. Writers hold one lock, so that a put-if-absent
is one, and write by rename, so that a reader never sees half an object. Knows nothing of runs.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from workers.contract.errors import StoreDenied, StoreFull, StoreUnavailable
from workers.object_store import ObjectInfo

_HIDDEN = (".meta", ".tmp", ".lock")
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FileStore:
    """See `ObjectStore`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"file://{root}"

    def put_new(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> bool:
        """Write unless the key exists."""
        with self._told("write", key), self._locked():
            if self._path(key).exists():
                return False
            self._write(key, body, metadata)
            return True

    def put(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Write, replacing what is there."""
        with self._told("write", key), self._locked():
            self._write(key, body, metadata)

    def put_file(self, key: str, path: Path) -> None:
        """Copy a file in, replacing what is there."""
        with self._told("write", key), self._locked():
            scratch = self._scratch()
            try:
                shutil.copyfile(path, scratch)
                self._publish(scratch, self._path(key))
            finally:
                scratch.unlink(missing_ok=True)

    def get(self, key: str) -> bytes | None:
        """The body, or None."""
        with self._told("read", key):
            try:
                return self._path(key).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def get_with_metadata(self, key: str) -> tuple[bytes, Mapping[str, str]] | None:
        """Body and metadata, or None."""
        body = self.get(key)
        if body is None:
            return None
        with self._told("read", key):
            return body, self._metadata(key)

    def head(self, key: str) -> ObjectInfo | None:
        """Size and metadata, or None."""
        with self._told("read", key):
            try:
                size_bytes = self._path(key).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None
            return ObjectInfo(key, size_bytes, self._metadata(key))

    def _metadata(self, key: str) -> dict[str, str]:
        try:
            found: dict[str, str] = json.loads(self._meta_path(key).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        return found

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below a prefix, by key."""
        with self._told("list", prefix):
            base = self._path(prefix.rpartition("/")[0])
            found = []
            for folder, subfolders, names in os.walk(base):
                subfolders[:] = [name for name in subfolders if name not in _HIDDEN]
                for name in names:
                    path = Path(folder, name)
                    key = path.relative_to(self.root).as_posix()
                    if key.startswith(prefix) and name not in _HIDDEN:
                        found.append(ObjectInfo(key, path.stat().st_size))
        return iter(sorted(found, key=lambda info: info.key))

    def folders(self, prefix: str) -> Iterator[str]:
        """One level below a prefix, by name."""
        with self._told("list", prefix):
            try:
                below = sorted(path.name for path in self._path(prefix).iterdir() if path.is_dir() and path.name not in _HIDDEN)
            except (FileNotFoundError, NotADirectoryError):
                below = []
        return iter(f"{prefix}{name}/" for name in below)

    def delete(self, key: str) -> None:
        """Remove, if it is there."""
        with self._told("delete", key), self._locked():
            self._path(key).unlink(missing_ok=True)
            self._meta_path(key).unlink(missing_ok=True)

    def check(self) -> str | None:
        """Write and read back a small object."""
        key = f".fleet-check-{os.getpid()}-{os.urandom(4).hex()}"  # several workers may check at once
        self.put(key, b"check")
        if self.get(key) != b"check":
            raise StoreUnavailable(self.url, "check", "what was written does not read back")
        self.delete(key)
        return None

    def _path(self, key: str) -> Path:
        return self.root / key

    def _meta_path(self, key: str) -> Path:
        return self.root / ".meta" / f"{key}.json"

    def _scratch(self) -> Path:
        folder = self.root / ".tmp"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{os.getpid()}-{os.urandom(8).hex()}"

    def _write(self, key: str, body: bytes, metadata: Mapping[str, str] | None) -> None:
        if metadata:  # before the body: an object that is there has its metadata
            # Not synced: metadata that a power loss takes is counted again from the rows.
            self._publish(self._scratched(json.dumps(dict(metadata)).encode(), sync=False), self._meta_path(key))
        else:
            self._meta_path(key).unlink(missing_ok=True)
        target = self._path(key)
        self._publish(self._scratched(body), target)
        _sync_folder(target.parent)

    def _scratched(self, body: bytes, *, sync: bool = True) -> Path:
        scratch = self._scratch()
        try:
            with scratch.open("wb") as file:
                file.write(body)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError:
            scratch.unlink(missing_ok=True)
            raise
        return scratch

    def _publish(self, scratch: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch.replace(target)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _told(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            cause = os.strerror(error.errno or 0)
            if error.errno in _FULL:
                raise StoreFull(self.url, f"{action} {key}", cause, _free_bytes(self.root)) from error
            kind = StoreDenied if error.errno in _DENIED else StoreUnavailable
            raise kind(self.url, f"{action} {key}", cause) from error


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:  # the folder itself could not be made
        return None


def _sync_folder(folder: Path) -> None:
    """So that a power loss takes no name that was told to be there."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
