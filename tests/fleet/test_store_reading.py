"""Objects that come cut, spoiled or not at all: read again while that can help, parked with their key when it cannot."""

import pytest

from ops.quickstart.processes import wait_until
from ops.quickstart.servers import S3Access
from tests.fleet.proxied import Proxied

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

INPUTS = "runs/r/inputs/"


def test_shards_that_come_cut_spoiled_or_not_at_all_a_few_times_are_read_again_and_nothing_is_parked(proxied: Proxied) -> None:
    proxy = proxied.proxy
    met = {
        "cut": (4, proxy.rule("cut", methods=("GET",), part=f"{INPUTS}00000000", times=4).met),
        "spoiled": (4, proxy.rule("spoil", methods=("GET",), part=f"{INPUTS}00000001", times=4).met),
        "without checksum": (2, proxy.rule("spoil", methods=("GET",), part=f"{INPUTS}00000002", times=2, bare=True).met),
        "not there": (
            1,
            proxy.rule("answer", methods=("GET",), part=f"{INPUTS}00000003", times=1, status=404, code="NoSuchKey").met,
        ),
    }
    proxied.fleet.engine()
    proxied.fleet.worker()
    proxied.enqueue(40)
    proxied.assert_done_once(40)
    assert {what: list(found.values()) for what, (_, found) in met.items()} == {
        what: [times] for what, (times, _) in met.items()
    }
    assert proxied.parked() == {}


def test_shards_that_stay_damaged_are_parked_with_their_keys_and_resumed_when_they_are_restored(
    proxied: Proxied, s3_access: S3Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_access.environment.items():
        monkeypatch.setenv(name, value)
    store = proxied.store()
    proxied.enqueue(80)
    half, changed, gone = keys = [f"{INPUTS}{number:08d}.jsonl.zst" for number in (3, 7, 11)]
    whole = {key: store.get(key) or b"" for key in keys}
    store.put(half, whole[half][: len(whole[half]) // 2])
    store.put(changed, whole[changed][:-1] + b"?")
    store.delete(gone)
    proxied.fleet.engine()
    proxied.fleet.worker()
    wait_until(lambda: proxied.fleet.counted() == 68 and len(proxied.parked()) == 3, 60, "all others done, these parked")
    causes = {int(batch): cause.decode() for batch, cause in proxied.parked().items()}
    for number, key, found in ((3, half, "digest"), (7, changed, "digest"), (11, gone, "nothing")):
        assert causes[number].startswith(f"{key}: found {found}")
        assert causes[number].endswith("restore the object, then `producer resume`")
    told = proxied.fleet.producer("status", "r")
    assert all(key in told.out for key in keys)
    assert "producer resume r" in told.out
    for key in keys:
        store.put(key, whole[key])
    resumed = proxied.fleet.producer("resume", "r", "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["pushed"] == 3
    proxied.assert_done_once(80)
