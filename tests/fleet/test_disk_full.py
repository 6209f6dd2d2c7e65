"""A disk without room, below a folder store or temporary files: told with its folder and free space, and nothing is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.quickstart.processes import free_port, wait_until
from ops.quickstart.servers import redis_server
from tests.fleet.harness import FleetUnderTest
from tests.fleet.small_disk import SmallDisk
from workers.contract.schema import decode_completions

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]


@pytest.fixture
def cramped(tmp_path: Path, small_disk: SmallDisk) -> Iterator[FleetUnderTest]:
    """A fleet whose store is on the small disk; all else is not."""
    port = free_port()
    server = redis_server(tmp_path / "redis", port)
    store_url = f"file://{small_disk.folder}/store"
    fleet = FleetUnderTest(tmp_path, store_url, {}, server.start(), port, within=small_disk.enter)
    try:
        yield fleet
    finally:
        fleet.stop()


def test_a_worker_waits_for_room_tells_the_folder_and_its_space_and_loses_nothing(
    cramped: FleetUnderTest, small_disk: SmallDisk
) -> None:
    cramped.engine()
    cramped.worker()
    cramped.enqueue(cramped.prompts(400), "r", "--batch-size", "4")
    wait_until(lambda: cramped.counted() > 40, 30, "the run under way")
    small_disk.fill()
    wait_until(lambda: "No space left on device" in cramped.told_by("gpu0").get("cause", ""), 30, "the worker tells why")
    (worker,) = cramped.status()["workers"]
    assert worker["state"] == "waiting"
    assert f"bytes are free in {small_disk.folder}/store; make room there" in worker["cause"]
    wait_until(lambda: cramped.told_by("gpu0")["in_flight"] == "0", 30, "nothing is begun any more")
    shards = list((small_disk.seen / "store/runs/r/completions").iterdir())
    assert [len(decode_completions(path.name, path.read_bytes())) for path in shards] == [4] * len(shards), "no half file"
    small_disk.make_room()
    cramped.wait_complete(timeout_s=50)
    assert cramped.assert_whole(prompts=400)["failed"] == 0
    assert set(cramped.generated("gpu0").values()) == {1}
    assert not list((small_disk.seen / "store/.tmp").iterdir())


def test_an_enqueue_into_a_store_without_room_ends_with_four_and_the_same_command_pushes_what_is_missing(
    cramped: FleetUnderTest, small_disk: SmallDisk
) -> None:
    small_disk.fill(leave_bytes=100_000)
    command = ("enqueue", str(cramped.prompts(400)), "--run", "r", "--max-tokens", "64", "--batch-size", "4", "--json")
    done = cramped.producer(*command)
    assert done.code == 4
    assert "No space left on device" in done.err
    assert f"bytes are free in {small_disk.folder}/store; make room there" in done.err
    assert "Traceback" not in done.err
    assert cramped.status_of() == "enqueueing"
    small_disk.make_room()
    again = cramped.producer(*command)
    assert again.code == 0, again.err
    assert (again.json["batches"], again.json["pushed"]) == (100, 100)
    assert cramped.producer(*command).json["pushed"] == 0
    cramped.engine()
    cramped.worker()
    cramped.wait_complete()
    cramped.assert_whole(prompts=400)


@pytest.mark.parametrize("leave_bytes", [24_000, 0])
def test_an_enqueue_without_room_for_temporary_files_says_so_in_a_sentence(
    fleet: FleetUnderTest, small_disk: SmallDisk, leave_bytes: int
) -> None:
    fleet.within = (*small_disk.enter, "env", f"TMPDIR={small_disk.folder}")
    small_disk.fill(leave_bytes)
    command = ("enqueue", str(fleet.prompts(4000)), "--run", "r", "--max-tokens", "64", "--json")
    done = fleet.producer(*command)
    if leave_bytes:
        assert done.code == 1
        assert f"temporary files in {small_disk.folder}: database or disk is full; make room there" in done.err
    else:  # Python takes the next folder for temporary files when TMPDIR has no room at all
        assert done.code == 0
    assert "Traceback" not in done.err
    small_disk.make_room()
    again = fleet.producer(*command)
    assert again.code == 0, again.err
    assert again.json["pushed"] == (63 if leave_bytes else 0)
