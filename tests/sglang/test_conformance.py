"""The real server of today answers as it was recorded: what the simulator is held to is still true."""

from collections.abc import Callable

import pytest

from tests.conformance.recordings import REPLAYED, load, nonconformity
from tests.sglang.conftest import RealEngine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


def test_the_real_server_answers_as_recorded(start_sglang: Callable[[str, str], RealEngine], version: str) -> None:
    engine = start_sglang(version, "tiny-qwen3")
    found = {name: lines for name in REPLAYED if (lines := nonconformity(engine.url, load(version, name)))}
    assert found == {}
