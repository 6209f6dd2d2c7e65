"""A whole job through each kind of Redis that FLEET_BROKER can name: TLS, Sentinels, a user with few rights."""

import ssl
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
import trustme

from ops.drill.proxy import Proxy
from ops.quickstart.processes import ChildProcess, free_port, listens, wait_until
from ops.quickstart.servers import redis_binary, redis_server
from tests.fleet.harness import FleetUnderTest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]
RIGHTS = (ROOT / "SECURITY.md").read_text().partition("```redis\n")[2].partition("\n```")[0].split()
"""What SECURITY.md says that a user needs."""


@pytest.fixture
def tls(fleet: FleetUnderTest, tmp_path: Path) -> Iterator[str]:
    """The URL of a Redis behind TLS, without options; ca.pem is its authority's certificate, other-ca.pem a stranger's.

    The server in the wheel is built without TLS, so a proxy before it ends the encryption, as stunnel would.
    """
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other-ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    front = Proxy(fleet.redis_port, tls=context).start()
    try:
        yield f"rediss://127.0.0.1:{front.port}/0"
        fleet.stop()
    finally:
        front.stop()


def test_a_job_and_flower_through_tls(fleet: FleetUnderTest, tls: str, tmp_path: Path) -> None:
    fleet.settings["FLEET_BROKER"] = f"{tls}?ssl_ca_certs={tmp_path / 'ca.pem'}"
    port = free_port()
    argv = [sys.executable, "-m", "celery", "-A", "workers", "flower", f"--port={port}", "--address=127.0.0.1"]
    flower = ChildProcess("Flower", argv, fleet.folder / "flower.log", ready=lambda: listens(port), env=fleet.env)
    fleet.children.append(flower.start())
    fleet.engine()
    fleet.worker()
    fleet.enqueue(fleet.prompts(40), "r", "--batch-size", "8")
    fleet.wait_complete()
    fleet.assert_whole(prompts=40)

    def page(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    wait_until(lambda: "gpu0@" in page("/workers"), 20, "the worker on Flower's page")
    assert "fleet" in page("/broker")


def test_a_certificate_that_is_not_trusted_is_exit_3_with_what_to_do(fleet: FleetUnderTest, tls: str, tmp_path: Path) -> None:
    for options in ("", f"?ssl_ca_certs={tmp_path / 'other-ca.pem'}"):
        fleet.settings["FLEET_BROKER"] = tls + options
        done = fleet.producer("runs")
        assert done.code == 3
        assert "its certificate is not trusted" in done.err
        assert "ssl_ca_certs in FLEET_BROKER names the file of its authority" in done.err
        worker = fleet.launch_worker("gpu0", "http://127.0.0.1:1")
        wait_until(lambda worker=worker: not worker.alive(), 40, "a worker ends, too")  # type: ignore[misc]
        assert worker.returncode() == 3
    fleet.settings["FLEET_BROKER"] = f"{tls}?ssl_ca_certs=/no/such/file"
    done = fleet.producer("runs")
    assert (done.code, done.err) == (2, "FLEET_BROKER: ssl_ca_certs is '/no/such/file', expected a file that can be read\n")
    fleet.settings["FLEET_BROKER"] = f"{tls}?ssl_cert_reqs=none&ssl_check_hostname=false"
    assert fleet.producer("runs").code == 0


def sentinel(folder: Path, number: int, primary_port: int) -> tuple[ChildProcess, int]:
    """One of three Sentinels, not yet started."""
    port = free_port()
    config = folder / f"sentinel-{number}.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor mymaster 127.0.0.1 {primary_port} 2\n"
        "sentinel down-after-milliseconds mymaster 1000\nsentinel failover-timeout mymaster 5000\n"
    )
    argv = [redis_binary(), str(config), "--sentinel"]
    return ChildProcess(f"sentinel {number}", argv, folder / f"sentinel-{number}.log", ready=lambda: listens(port)), port


def knows_all(port: int) -> bool:
    """Whether a Sentinel has found the replica and its colleagues; before, it could not fail over."""
    with redis.Redis(port=port, decode_responses=True) as client:
        master = client.sentinel_master("mymaster")
        return bool(master["num-slaves"] >= 1 and master["num-other-sentinels"] >= 2)


def test_a_job_goes_on_at_the_replica_when_the_primary_dies(fleet: FleetUnderTest, tmp_path: Path) -> None:
    primary, port = fleet.redis_process, free_port()
    with ExitStack() as stack:
        follows = ("--replicaof", "127.0.0.1", str(fleet.redis_port))
        stack.enter_context(redis_server(tmp_path / "replica", port, extra=follows))
        replica = stack.enter_context(redis.Redis(port=port))
        wait_until(lambda: replica.info("replication")["master_link_status"] == "up", 30, "the replica has all")
        guards = [sentinel(tmp_path, number, fleet.redis_port) for number in range(3)]
        for guard, _ in guards:
            stack.enter_context(guard)
        for _, guard_port in guards:
            wait_until(lambda guard_port=guard_port: knows_all(guard_port), 30, "the Sentinels know all")  # type: ignore[misc]
        hosts = ",".join(f"127.0.0.1:{guard_port}" for _, guard_port in guards)
        fleet.settings["FLEET_BROKER"] = f"sentinel://{hosts}/0?master=mymaster"
        fleet.engine()
        fleet.worker()
        fleet.enqueue(fleet.prompts(400), "r", "--batch-size", "8")
        wait_until(lambda: fleet.counted() > 60, 30, "the run under way")
        primary.kill()
        fleet.redis_port = port
        wait_until(lambda: replica.role()[0] == b"master", 20, "the replica promoted")
        fleet.wait_complete(timeout_s=80)
        assert fleet.assert_whole(prompts=400)["failed"] == 0
        fleet.stop()


def test_a_user_with_the_rights_of_the_security_page_can_do_everything(fleet: FleetUnderTest) -> None:
    with fleet.client as client:
        client.execute_command("ACL", "SETUSER", "fleet", "reset", "on", ">secret", *RIGHTS)
        fleet.settings["FLEET_BROKER"] = f"redis://fleet:secret@127.0.0.1:{fleet.redis_port}/0"
        fleet.enqueue(fleet.prompts(300), "r", "--batch-size", "4", "--priority", "9")
        for command in ("pause", "resume", "cancel", "resume"):
            assert fleet.producer(command, "r").code == 0
        fleet.engine()
        worker = fleet.worker()
        wait_until(lambda: fleet.status_of() == "complete" or bool(client.acl_log()), 60, "complete")
        assert client.acl_log() == []
        for line in ("runs", "failures r", "requeue r", "audit r --repair", "resume r --rebuild"):
            assert fleet.producer(*line.split()).code == 0
            wait_until(lambda: fleet.status()["status"] == "complete", 60, "the repair ended")
        assert worker.stop() == 0
        assert client.acl_log() == [], "nothing was forbidden on the way"


def test_a_redis_off_the_loopback_without_a_password_is_warned_of(fleet: FleetUnderTest) -> None:
    fleet.settings["FLEET_BROKER"] = f"redis://0.0.0.0:{fleet.redis_port}/0"
    fleet.engine()
    worker = fleet.worker()
    assert "broker.unprotected" in worker.log_path.read_text()
    done = fleet.producer("enqueue", str(fleet.prompts(3)), "--run", "r")
    assert (done.code, "warning: Redis has no password" in done.err) == (0, True)


def test_a_right_that_is_missing_is_named(fleet: FleetUnderTest) -> None:
    with fleet.client as client:
        client.execute_command("ACL", "SETUSER", "fleet", "reset", "on", ">secret", *RIGHTS, "-zadd")
    fleet.settings["FLEET_BROKER"] = f"redis://fleet:secret@127.0.0.1:{fleet.redis_port}/0"
    done = fleet.producer("enqueue", str(fleet.prompts(3)), "--run", "r")
    assert done.code == 3
    assert "has no permissions to run the 'zadd' command" in done.err
    assert "and the user's rights (SECURITY.md)" in done.err
