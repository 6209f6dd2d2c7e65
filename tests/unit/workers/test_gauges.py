"""One reading of an engine, from what both versions of the real server answered, and from what is none."""

import msgspec
import pytest

from ops.simulator.gauges import recorded
from tests.conformance.recordings import GOLDEN, VERSIONS
from workers.engine import flags_digest
from workers.gauges import EngineGauges, read_gauges


def body(version: str, name: str) -> str:
    """What the real server answered, without the head and the note below."""
    return (GOLDEN / version / f"{name}.txt").read_text().split("\n\n", 2)[2].rpartition("\n# elapsed")[0]


def reading(version: str) -> EngineGauges:
    return read_gauges(body(version, "v1_loads").encode(), body(version, "metrics"))


def test_the_older_version_is_read() -> None:
    assert reading("0.5.11") == EngineGauges(
        running=0,
        queued=0,
        running_limit=2048,
        kv_usage=0.0,
        kv_tokens=8192,
        decoded_total=1997.0,
        finished_total=1994.0,
    )


def test_the_newer_version_is_read_with_its_series_summed() -> None:
    found = reading("0.5.23")
    assert (found.decoded_total, found.finished_total, found.running_limit) == (772.0, 743.0 + 53.0, 2048)
    assert (found.state_usage, found.accept_length) == (None, None), "0 of a feature that the model does not have"


@pytest.mark.parametrize("version", VERSIONS)
def test_without_metrics_loads_alone_are_read(version: str) -> None:
    found = read_gauges(body(version, "v1_loads").encode(), "")
    assert (found.running, found.kv_tokens, found.decoded_total, found.finished_total) == (0, 8192, None, None)


def test_ranks_are_summed_and_the_fullest_counts() -> None:
    rank = {"num_running_reqs": 3, "num_waiting_reqs": 1, "token_usage": 0.2, "max_total_num_tokens": 100}
    rank["max_running_requests"] = 8
    ranks = [rank, rank | {"num_running_reqs": 4, "num_waiting_reqs": 0, "token_usage": 0.7}]
    metrics = (
        'sglang:mamba_usage{dp_rank="0"} 0.25\nsglang:mamba_usage{dp_rank="1"} 0.5\n'
        'sglang:spec_accept_length{dp_rank="0"} 2.5\nsglang:num_retracted_requests_total{dp_rank="0"} 2\n'
        'sglang:num_retracted_requests_total{dp_rank="1"} 1\n'
    )
    found = read_gauges(msgspec.json.encode({"loads": ranks}), metrics)
    assert (found.running, found.queued, found.running_limit, found.kv_tokens) == (7, 1, 16, 200)
    assert (found.kv_usage, found.state_usage, found.accept_length, found.retracted_total) == (0.7, 0.5, 2.5, 3.0)


@pytest.mark.parametrize("loads", [b"", b"{}", b"[]", b'{"loads": 7}', b'{"loads": [7]}', b"<html>"])
def test_what_is_not_sglangs_is_an_error(loads: bytes) -> None:
    with pytest.raises(ValueError, match="is not SGLang's"):
        read_gauges(loads, "")


def test_rubbish_among_the_metrics_is_an_error_and_no_crash() -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (the parser's own words)
        read_gauges(b'{"loads": []}', 'sglang:mamba_usage{tp_rank="0"} many\n')


@pytest.mark.parametrize("version", VERSIONS)
def test_the_digest_of_flags_differs_with_a_flag_and_with_nothing_else(version: str) -> None:
    info = recorded(version)["server_info"]
    elsewhere = info | {
        "port": 31000,
        "host": "h",
        "random_seed": 1,
        "api_key": "secret",
        "internal_states": [],
        "base_gpu_id": 3,
    }
    assert flags_digest(info) == flags_digest(elsewhere)
    assert flags_digest(info) != flags_digest(info | {"max_running_requests": 7})
    assert len(flags_digest(info)) == 12
