"""Celery's thread pool with one asyncio loop per process.

Each task keeps its own cheap, blocked thread, so that Celery's tracer, signals, acknowledgements and events stay stock; the I/O
of all tasks runs on the shared loop. Adds what the stock threads pool lacks: jobs that can be terminated (revoke, cold
shutdown), and a wake-up of the consumer when a job ends. Source: celery/concurrency/thread.py of 5.7.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import apply_target
from celery.concurrency.thread import ApplyResult, TaskPool
from kombu.asynchronous import get_event_loop

T = TypeVar("T")

_current = threading.local()


class Job:
    """One task in its thread; `terminate` cancels the coroutine that it waits for."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.terminated = False
        self._waits_for: Future[Any] | None = None
        self._lock = threading.Lock()

    def waits_for(self, future: "Future[Any]") -> None:
        """Remember what to cancel."""
        with self._lock:
            self._waits_for = future
            if self.terminated:
                future.cancel()

    def terminate(self) -> None:
        """End the job; Celery has already announced it, so it will not report back."""
        with self._lock:
            self.terminated = True
            if self._waits_for is not None:
                self._waits_for.cancel()


class JobResult(ApplyResult):  # type: ignore[misc]  # Celery has no types
    """What Celery holds of a job."""

    def __init__(self, future: "Future[Any]", job: Job) -> None:
        super().__init__(future)
        self._job = job

    def terminate(self, signal: object) -> None:
        """Called by cold shutdown."""
        self._job.terminate()


class LoopPool(TaskPool):  # type: ignore[misc]  # ditto
    """See the module."""

    loop: asyncio.AbstractEventLoop
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}

    def on_start(self) -> None:
        """Start the loop in its thread."""
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._run_loop, name="asyncio", daemon=True).start()
        _current.loop = self.loop

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> JobResult:
        """Run a task in a thread of its own."""
        job = Job(next(self._numbers))
        self._jobs[job.number] = job
        future = self.executor.submit(self._run_job, job, target, args, kwargs, callback, accept_callback)
        return JobResult(future, job)

    def _run_job(
        self,
        job: Job,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None,
        kwargs: dict[str, Any] | None,
        callback: Callable[..., Any] | None,
        accept_callback: Callable[..., Any] | None,
    ) -> None:
        _current.job, _current.loop = job, self.loop

        def report(result: object) -> None:
            if callback is not None and not job.terminated:
                callback(result)

        def guarded(*a: Any, **k: Any) -> Any:
            try:
                return target(*a, **k)
            except Exception:
                raise
            except BaseException as error:  # noqa: BLE001  (SystemExit in a body would lose the slot for ever)
                try:
                    raise RuntimeError(f"task body raised {error!r}") from error
                except RuntimeError:
                    return 1, ExceptionInfo(), 0.0

        try:
            apply_target(guarded, args, kwargs, report, accept_callback, pid=job.number)
        finally:
            _current.job = None
            self._jobs.pop(job.number, None)
            wake_consumer()

    def terminate_job(self, pid: int, signal: object = None) -> None:
        """Called by revoke(terminate=True) with the number that we gave as pid."""
        job = self._jobs.get(pid)
        if job is not None:
            job.terminate()

    def _get_info(self) -> dict[str, Any]:
        return {**super()._get_info(), "open-batches": len(self._jobs)}


class Terminated(Exception):
    """The job was ended from outside."""


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the pool's loop from a task body and wait for it.

    Raises:
        Terminated: The job was revoked or the worker is going down cold.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, _current.loop)
    job: Job | None = getattr(_current, "job", None)
    if job is not None:
        job.waits_for(future)
    try:
        return future.result()
    except CancelledError as error:
        raise Terminated from error


def wake_consumer() -> None:
    """Let the consumer look again whether it may take a message; without this it looks once a second. From any thread."""
    hub = get_event_loop()
    if hub is not None:
        hub.call_soon(_nothing)


def _nothing() -> None:
    pass
