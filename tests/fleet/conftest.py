from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.quickstart.processes import free_port
from ops.quickstart.servers import redis_server
from tests.fleet.harness import FleetUnderTest


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetUnderTest]:
    """A fleet on a folder store."""
    port = free_port()
    server = redis_server(tmp_path / "redis", port)
    under_test = FleetUnderTest(tmp_path, f"file://{tmp_path / 'store'}", {}, server.start(), port)
    try:
        yield under_test
    finally:
        under_test.stop()
