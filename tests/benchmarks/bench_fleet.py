"""A fleet in a temporary folder for one benchmark."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.quickstart.processes import free_port
from ops.quickstart.servers import redis_server
from tests.fleet.harness import FleetUnderTest


@contextmanager
def bench_fleet() -> Iterator[FleetUnderTest]:
    """Redis and a folder store; everything is stopped and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="promptfleet-bench-") as name:
        folder, port = Path(name), free_port()
        server = redis_server(folder / "redis", port)
        fleet = FleetUnderTest(folder, f"file://{folder / 'store'}", {}, server.start(), port)
        fleet.settings = {"FLEET_LEASE_S": "15", "FLEET_LEASE_RENEWAL_S": "3"}
        try:
            yield fleet
        finally:
            fleet.stop()
