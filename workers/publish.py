"""Push one batch's message into the queue. Blocks; knows Celery, not the ledger."""

import uuid

import msgspec
from celery import Celery

from workers.contract import names
from workers.contract.schema import BatchMessage


def push(app: Celery, message: BatchMessage, priority: int, *, recovered: bool = False, producer: object | None = None) -> None:
    """Send the claim check of a batch.

    Args:
        app: From `workers.celery.make_app`.
        message: The claim check.
        priority: Of the run, 9 is served first.
        recovered: The batch was taken before; it goes before its run's other batches.
        producer: A Kombu producer to send with, when many messages follow each other.

    Raises:
        kombu.exceptions.OperationalError: Redis is away.
    """
    app.send_task(
        names.TASK_GENERATE,
        kwargs=msgspec.to_builtins(message),
        task_id=names.task_id(message.run, message.batch, uuid.uuid4().hex[:8]),
        queue=names.QUEUE,
        priority=names.broker_priority(priority, recovered=recovered),
        producer=producer,
    )
