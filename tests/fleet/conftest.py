from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.quickstart.processes import free_port
from ops.quickstart.servers import S3Access, redis_server
from tests.fleet.harness import FleetUnderTest
from tests.fleet.proxied import Proxied
from tests.fleet.small_disk import SmallDisk, small_disk_in
from tests.fleet.store_proxy import StoreProxy


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


@pytest.fixture
def proxied(tmp_path: Path, s3_access: S3Access) -> Iterator[Proxied]:
    """A fleet on a real S3 server, and a proxy between them."""
    proxy = StoreProxy(s3_access.endpoint).start()
    port = free_port()
    server = redis_server(tmp_path / "redis", port)
    environment = {**s3_access.environment, "AWS_ENDPOINT_URL": proxy.url}
    under_test = FleetUnderTest(tmp_path, f"s3://{s3_access.bucket}/{tmp_path.name}", environment, server.start(), port)
    try:
        yield Proxied(under_test, proxy, s3_access.endpoint)
    finally:
        under_test.stop()
        proxy.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of four megabytes that processes can be started on."""
    with small_disk_in(tmp_path / "disk", size_bytes=4 << 20) as disk:
        yield disk
