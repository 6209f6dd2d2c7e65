"""The real server of today answers as it was recorded: what the simulator is held to is still true."""

from collections.abc import Callable

import pytest

from tests.conformance.checks import MODELS, check_conformance
from tests.sglang.conftest import RealEngine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.mark.parametrize("model", MODELS)
def test_the_real_server_answers_as_recorded(start_sglang: Callable[[str, str], RealEngine], version: str, model: str) -> None:
    assert check_conformance(start_sglang(version, model).url, version, model) == {}
