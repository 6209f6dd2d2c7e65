"""Flower beside a fleet: it sees the worker and the batches, by readable names."""

import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from ops.quickstart.processes import ChildProcess, free_port, listens, wait_until
from tests.fleet.harness import FleetUnderTest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(90)]

CONFIG = Path(__file__).parents[2] / "ops" / "flower" / "flowerconfig.py"


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        return str(response.read().decode())


def test_flower_shows_the_worker_and_each_batch_by_run_and_number(fleet: FleetUnderTest) -> None:
    port = free_port()
    argv = [sys.executable, "-m", "celery", "-A", "workers", "flower", f"--port={port}", f"--conf={CONFIG}"]
    flower = ChildProcess("Flower", argv, fleet.folder / "flower.log", ready=lambda: listens(port), env=fleet.env)
    fleet.children.append(flower.start())
    fleet.engine()
    fleet.worker()
    fleet.enqueue(fleet.prompts(40), "my-run", "--batch-size", "10")
    fleet.wait_complete("my-run")
    wait_until(lambda: "gpu0@" in page(f"http://127.0.0.1:{port}/workers"), 15, "the worker on Flower's page")

    def metrics() -> str:
        return page(f"http://127.0.0.1:{port}/metrics")

    wait_until(lambda: 'task="fleet.generate",type="task-succeeded"' in metrics(), 15, "Flower counts the batches")
    query = urllib.parse.urlencode({"draw": 1, "start": 0, "length": 10, "order[0][column]": 0, "order[0][dir]": "asc"})
    columns = "".join(f"&columns[{place}][data]={name}" for place, name in enumerate(("name", "uuid", "state")))
    table = page(f"http://127.0.0.1:{port}/tasks/datatable?{query}{columns}&search[value]=")
    for number in range(4):
        assert f"my-run batch {number}" in table
    assert "batch.completed" in table
