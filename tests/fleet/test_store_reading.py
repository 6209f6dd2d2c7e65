"""Objects that come cut, spoiled or not at all: read again while that can help, parked with their key when it cannot."""

import pytest

from ops.quickstart.processes import wait_until
from ops.quickstart.servers import S3Access
from tests.fleet.proxied import Proxied

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

KEY = "runs/r/inputs/00000003.jsonl.zst"


@pytest.mark.parametrize(
    ("action", "bare", "times"), [("cut", False, 4), ("spoil", False, 4), ("spoil", True, 2), ("answer", False, 1)]
)
def test_shards_that_come_cut_spoiled_or_not_at_all_a_few_times_are_read_again_and_nothing_is_parked(
    proxied: Proxied, action: str, bare: bool, times: int
) -> None:
    fault = {"status": 404, "code": "NoSuchKey"} if action == "answer" else {"bare": bare}
    met = proxied.proxy.rule(action, methods=("GET",), part="/r/inputs/", times=times, **fault).met  # type: ignore[arg-type]
    proxied.fleet.engine()
    proxied.fleet.worker()
    proxied.enqueue(40)
    proxied.assert_done_once(40)
    assert set(met.values()) == {times}
    assert len(met) == 10
    assert proxied.parked() == {}


@pytest.mark.parametrize("damage", ["half", "changed", "gone"])
def test_a_shard_that_stays_damaged_is_parked_with_its_key_and_resumed_when_it_is_restored(
    proxied: Proxied, s3_access: S3Access, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    for name, value in s3_access.environment.items():
        monkeypatch.setenv(name, value)
    store = proxied.store()
    proxied.enqueue(80)
    whole = store.get(KEY)
    assert whole is not None
    if damage == "gone":
        store.delete(KEY)
    else:
        store.put(KEY, whole[: len(whole) // 2] if damage == "half" else whole[:-1] + b"?")
    proxied.fleet.engine()
    proxied.fleet.worker()
    wait_until(lambda: proxied.fleet.counted() == 76 and bool(proxied.parked()), 45, "all others done, this one parked")
    (cause,) = proxied.parked().values()
    assert cause.decode().startswith(f"{KEY}: found {'nothing' if damage == 'gone' else 'digest'}")
    assert cause.decode().endswith("restore the object, then `producer resume`")
    told = proxied.fleet.producer("status", "r")
    assert KEY in told.out
    assert "producer resume r" in told.out
    store.put(KEY, whole)
    resumed = proxied.fleet.producer("resume", "r", "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["pushed"] == 1
    proxied.assert_done_once(80)
