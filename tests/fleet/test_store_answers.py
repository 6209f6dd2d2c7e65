"""A store that answers what it should not: too busy, denied, expired; that loses an answer, or gives none at all.

What is finished waits, its cause is told, nothing is generated twice, and the worker goes on by itself.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from ops.quickstart.processes import wait_until
from ops.quickstart.servers import S3Access
from tests.fleet.proxied import Proxied
from workers.shards import MAX_UNWRITTEN

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]


def test_a_store_that_asks_for_fewer_requests_is_asked_again_tells_so_and_costs_no_answer(proxied: Proxied) -> None:
    proxied.under_way(600)
    busy = proxied.proxy.rule("answer", status=503, code="SlowDown")
    proxied.wait_for_cause("503 S", "it is busy, or wants fewer requests at once")
    proxied.wait_until_idle()
    assert len(proxied.fleet.held_by("gpu0")) <= MAX_UNWRITTEN + 20, "what waits for the store, and what was open"
    proxied.proxy.heal()
    assert busy.met.total() > MAX_UNWRITTEN
    proxied.assert_done_once(600)


def test_a_store_that_is_too_busy_for_every_third_request_slows_a_run_and_costs_nothing(proxied: Proxied) -> None:
    busy = proxied.proxy.rule("answer", status=503, code="SlowDown", every=3)
    proxied.under_way(80)
    proxied.assert_done_once(80)
    assert busy.met.total() > 20, "twenty shards in, twenty out"


def test_a_put_whose_answer_is_lost_meets_its_own_object_and_is_done(proxied: Proxied) -> None:
    lost = proxied.proxy.rule("lose_answer", methods=("PUT",), times=1)
    proxied.under_way(100)
    proxied.assert_done_once(100)
    shards = {f"r/{kind}/{number:08}.jsonl.zst" for kind in ("inputs", "completions") for number in range(25)}
    probe = ""  # by which a worker finds out what the store can do
    assert set(lost.met) == {probe, "r/manifest.json", *shards}
    assert proxied.log_of("gpu0").count("shard.exists") == 25


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (400, "ExpiredToken")])
def test_a_store_that_denies_in_mid_run_is_waited_for_and_taken_up_when_it_grants_again(
    proxied: Proxied, status: int, code: str
) -> None:
    proxied.under_way(400)
    proxied.proxy.rule("answer", status=status, code=code)
    proxied.wait_for_cause("denied", "check the credentials, the bucket and its policy")
    assert code in proxied.cause() or f"{status}" in proxied.cause()
    proxied.wait_until_idle()
    proxied.proxy.heal()
    proxied.assert_done_once(400)


def test_credentials_that_are_replaced_in_their_file_are_taken_by_a_running_worker(
    proxied: Proxied, s3_access: S3Access, tmp_path: Path
) -> None:
    given = tmp_path / "credentials"
    write = writer_of(given, s3_access.access_key)
    write(s3_access.secret_key)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del proxied.fleet.store_env[name]
    proxied.fleet.store_env["AWS_SHARED_CREDENTIALS_FILE"] = str(given)
    proxied.under_way(400)
    proxied.proxy.rule("answer", status=400, code="ExpiredToken")
    proxied.wait_for_cause("denied")
    given.unlink()  # as some tools replace it: for a moment there is none
    proxied.wait_for_cause("Unable to locate credentials")
    write("of yesterday")
    wait_until(lambda: "Unable" not in proxied.cause(), 30, "the worker has found the new file")
    proxied.proxy.heal()
    proxied.wait_for_cause("SignatureDoesNotMatch")
    write(s3_access.secret_key)
    proxied.assert_done_once(400)


def writer_of(path: Path, key: str) -> Callable[[str], None]:
    def write(secret: str) -> None:
        path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")

    return write


def test_a_store_that_takes_connections_and_never_answers_is_told_and_given_up_in_time(proxied: Proxied) -> None:
    proxied.under_way(400)
    proxied.proxy.rule("hold")
    proxied.wait_for_cause("runs/r/", "no answer for 10 s")
    proxied.wait_until_idle()
    assert len(proxied.fleet.held_by("gpu0")) <= MAX_UNWRITTEN + 20
    proxied.proxy.heal()  # what was asked before gets no answer ever; its time runs out
    proxied.assert_done_once(400)
