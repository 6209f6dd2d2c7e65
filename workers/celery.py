"""The Celery application: broker, queue, serializer, transport options, logging. `celery -A workers …` finds `app` here.

One broker configuration for both sides: producers call `make_app` and send by task name; only a worker loads task code.
The environment of a worker is read here and nowhere else.
"""

import logging
import os
import sys

import structlog
from celery import Celery, signals
from kombu import Queue

from workers.broker import sentinel_options
from workers.contract import names
from workers.contract.errors import SettingsError
from workers.contract.settings import FleetSettings, StoreSettings, read_settings
from workers.settings import WorkerSettings, misspelt_settings

MAX_OPEN_BATCHES = 1024
"""Size of the pool: threads that each wait for one open batch. How many are open is decided by `workers/slots.py`."""

_TRANSPORT = {
    # A message is acknowledged as soon as it is accepted, so this only covers messages in a dying worker's hands. The sweep
    # counts these as waiting, so a long timeout would hide them from it.
    "visibility_timeout": 10,
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
    "socket_timeout": 10,  # without it a half-open connection blocks the consumer for ever (kombu 5.7)
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 10,
    "priority_steps": list(range(names.PRIORITY_LEVELS)),
    "queue_order_strategy": "priority",
}


def make_app(settings: FleetSettings) -> Celery:
    """A Celery application for these settings; connects to nothing."""
    place = settings.broker_url
    app = Celery("promptfleet", broker=place.celery_url, set_as_current=False)
    sentinels = {"master_name": place.master, "sentinel_kwargs": sentinel_options(place)} if place.master else {}
    app.conf.update(
        broker_use_ssl=place.tls,
        accept_content=["json"],  # never pickle: who can write to Redis must not run code here
        task_serializer="json",
        task_ignore_result=True,
        task_default_queue=names.QUEUE,
        task_queues=[Queue(names.QUEUE)],
        task_create_missing_queues=False,
        task_default_priority=names.broker_priority(names.DEFAULT_PRIORITY),
        task_acks_late=False,
        worker_disable_prefetch=False,  # workers/consumer.py decides when the next message is taken
        worker_prefetch_multiplier=0,
        worker_pool="workers.pool:LoopPool",
        worker_concurrency=MAX_OPEN_BATCHES,
        worker_send_task_events=True,
        worker_enable_remote_control=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,  # a Redis that is full, or a replica by now, would end the worker otherwise
        broker_transport_options=_TRANSPORT | sentinels,
        imports=("workers.tasks",),
        enable_utc=True,
    )
    app.steps["worker"].add("workers.consumer:EngineRoom")
    app.steps["consumer"].add("workers.consumer:ReserveOnDemand")
    return app


def settings_from_environment() -> FleetSettings:
    """Settings that all processes agree on.

    Raises:
        SettingsError: See there.
    """
    return read_settings(FleetSettings, os.environ)


def store_settings_from_environment() -> StoreSettings:
    """Settings of a process that reads the store only.

    Raises:
        SettingsError: See there.
    """
    return read_settings(StoreSettings, os.environ)


def worker_settings_from_environment() -> WorkerSettings:
    """Settings of this worker.

    Raises:
        SettingsError: See there.
    """
    return read_settings(WorkerSettings, {"FLEET_GPU": os.environ.get("CUDA_VISIBLE_DEVICES", ""), **os.environ})


def configure_logging(settings: StoreSettings) -> None:
    """Events with fields on stderr: JSON lines, or aligned for people."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    render = structlog.processors.JSONRenderer() if settings.log == "json" else structlog.dev.ConsoleRenderer(colors=False)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    root = logging.StreamHandler(sys.stderr)
    root.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render], foreign_pre_chain=shared
        )
    )
    logging.basicConfig(level=level, handlers=[root], force=True)
    # Celery reports each task in prose; every delivery already ends in one event of ours (workers/tasks.py).
    for noisy in ("celery.worker.strategy", "celery.app.trace", "botocore", "aiohttp", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


def warn_of_misspelt_settings() -> None:
    """On stderr, once a process."""
    for sentence in misspelt_settings(os.environ):
        sys.stderr.write(f"warning: {sentence}\n")


def __getattr__(name: str) -> object:
    """Make `app` when `celery -A workers` asks for it, so that importing this module needs no settings."""
    if name != "app":
        raise AttributeError(name)
    try:
        settings = settings_from_environment()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from error
    app = make_app(settings)
    app.set_current()
    signals.setup_logging.connect(lambda **_: configure_logging(settings), weak=False)
    globals()["app"] = app
    return app
