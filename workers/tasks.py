"""The Celery task: message → delivery. No other logic."""

from typing import Any

import structlog
from celery import shared_task

from workers.consumer import current_runtime
from workers.contract import names
from workers.contract.errors import ContractMismatch
from workers.contract.schema import decode_message
from workers.pool import wait_for

log = structlog.get_logger()


@shared_task(name=names.TASK_GENERATE, ignore_result=True)  # type: ignore[untyped-decorator]
def generate(**fields: Any) -> str:
    """Work on the batch that a message names; returns how the delivery ended, for Flower."""
    runtime = current_runtime()
    try:
        message = decode_message(fields)
    except ContractMismatch:
        log.exception("message.refused")
        raise
    return wait_for(runtime.deliveries.deliver(message))
