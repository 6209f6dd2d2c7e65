"""A folder for the temporary files of a command, and what is wrong with it in a sentence."""

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.contract.errors import ScratchUnusable

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that is gone afterwards.

    Raises:
        ScratchUnusable: It cannot be made, or what is written into it meets a full disk. Other errors of the block pass.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="promptfleet-")
    except OSError as error:
        raise ScratchUnusable(_place(), _cause(error)) from error
    try:
        with made as folder:
            yield Path(folder)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ScratchUnusable(_place(), _cause(error)) from error
    except sqlite3.Error as error:
        raise ScratchUnusable(_place(), str(error)) from error


def _place() -> str:
    return tempfile.tempdir or os.environ.get("TMPDIR") or "TMPDIR"


def _cause(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno in _FULL and error.errno else str(error)
