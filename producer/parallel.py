"""Reading many objects at once, in order, with a bounded number in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

READERS = 16
"""Threads that wait for the store; half of the connections that `workers/s3.py` keeps, so that two readers fit."""


def in_order(function: Callable[[A], B], items: Iterable[A], threads: int = READERS) -> Iterator[B]:
    """Results of `function` for each item, in the order of the items; at most `2 × threads` are begun and not yet taken."""
    window: deque[Future[B]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="reader")
    try:
        for item in items:
            window.append(pool.submit(function, item))
            if len(window) >= 2 * threads:
                yield window.popleft().result()
        while window:
            yield window.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
