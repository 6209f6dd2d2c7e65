"""A small disk that is really full when it is: a tmpfs in namespaces of its own, without root, and with no mount to undo."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.quickstart.processes import ChildFailed, ChildProcess

_BLOCK_BYTES = 4096


@dataclass(frozen=True)
class SmallDisk:
    """`folder` is where programs behind `enter` find the disk, `seen` where this process does."""

    folder: Path
    seen: Path
    enter: tuple[str, ...]

    def fill(self, leave_bytes: int = 0) -> None:
        """Leave so much free."""
        with (self.seen / "filler").open("ab", buffering=0) as filler:
            while self.free_bytes() > leave_bytes:
                with contextlib.suppress(OSError):  # somebody else took the last block
                    filler.write(bytes(_BLOCK_BYTES))

    def make_room(self) -> None:
        (self.seen / "filler").unlink()

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.seen).free


@contextmanager
def small_disk_in(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A disk at `folder`, for those programs that enter; it is gone with the process that holds it."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("a small disk needs Linux with util-linux (unshare, nsenter)")
    folder.mkdir()
    mount = f'mount -t tmpfs -o size={size_bytes} tmpfs "$1" && touch "$1/mounted" && exec sleep infinity'
    holder = ChildProcess(
        "small disk",
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", str(folder)],
        folder.with_suffix(".log"),
        ready=lambda: _inside(holder.pid, folder).joinpath("mounted").exists(),
    )
    try:
        holder.start()
    except ChildFailed as error:
        pytest.skip(f"this system gives users no namespaces of their own: {error}")
    try:
        enter = ("nsenter", "--target", str(holder.pid), "--user", "--preserve-credentials", "--mount", f"--wd={Path.cwd()}")
        yield SmallDisk(folder, _inside(holder.pid, folder), enter)
    finally:
        holder.kill()


def _inside(pid: int, folder: Path) -> Path:
    return Path(f"/proc/{pid}/root{os.fspath(folder)}")
