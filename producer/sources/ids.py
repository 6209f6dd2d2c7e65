"""Which ids a run has already: exact, on disk, so that memory stays flat for a hundred million rows."""

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from types import TracebackType
from typing import Self

from producer.scratch import scratch_folder
from workers.contract.schema import PromptId

CACHE_KIB = 64 * 1024


class SeenIds:
    """A set of ids in a temporary file. An integer and the string of its digits are two ids.

    Raises `ScratchUnusable` at the end of the block, instead of what the disk said within it.
    """

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = stack.enter_context(scratch_folder())
            self._table = stack.enter_context(closing(sqlite3.connect(folder / "ids.sqlite", isolation_level=None)))
            for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_KIB}", "locking_mode=EXCLUSIVE"):
                self._table.execute(f"PRAGMA {pragma}")
            self._table.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def add(self, ids: Sequence[PromptId]) -> list[bool]:
        """Add ids; shape (len(ids),): whether each was there before, earlier ones of the same call included."""
        digests = [_digest(value) for value in ids]
        known: set[bytes] = set()
        for start in range(0, len(digests), 500):
            some = digests[start : start + 500]
            marks = ",".join("?" * len(some))
            known.update(row[0] for row in self._table.execute(f"SELECT digest FROM seen WHERE digest IN ({marks})", some))  # noqa: S608
        answer = []
        for digest in digests:
            answer.append(digest in known)
            known.add(digest)
        self._table.execute("BEGIN")
        self._table.executemany("INSERT OR IGNORE INTO seen VALUES (?)", ((digest,) for digest in sorted(set(digests))))
        self._table.execute("COMMIT")
        return answer


def _digest(value: PromptId) -> bytes:
    tagged = b"i%d" % value if isinstance(value, int) else b"s" + value.encode()
    return hashlib.blake2b(tagged, digest_size=16).digest()
