"""Flower's configuration: `celery -A workers flower --conf=ops/flower/flowerconfig.py`.

Flower shows one task per batch. Its arguments hold no prompts (a message is a claim check), so nothing needs hiding.
"""

from typing import Any

address = "127.0.0.1"  # Flower can stop workers: beyond the loopback, put a login before it (basic_auth)
max_tasks = 20_000  # 5.5 kB each
natural_time = True
inspect_timeout = 2_000.0  # milliseconds
tasks_columns = "name,uuid,state,args,kwargs,result,received,started,runtime,worker"
task_runtime_metric_buckets = [1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0]  # a batch takes minutes


def format_task(task: Any) -> Any:
    """Show run and batch where Flower shows the task's name; the id is `<run>.<batch>.<nonce>` already."""
    parts = str(task.uuid).rsplit(".", 2)
    if len(parts) == 3 and parts[1].isdigit():  # else it is none of ours
        task.name = f"{parts[0]} batch {int(parts[1])}"
        task.kwargs = ""
    return task
