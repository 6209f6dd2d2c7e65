"""What every object store must do, proven for a folder and for a real S3 server alike."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ops.quickstart.processes import free_port
from ops.quickstart.servers import S3Access
from workers.contract.errors import StoreDenied, StoreUnavailable
from workers.contract.settings import FleetSettings
from workers.store import ObjectStore, open_store

pytestmark = pytest.mark.integration


def opened(url: str) -> ObjectStore:
    return open_store(FleetSettings(broker="redis://127.0.0.1:1", store=url))


@pytest.fixture
def store(store_url: str) -> ObjectStore:
    return opened(store_url)


def test_what_is_put_comes_back_with_its_metadata(store: ObjectStore) -> None:
    body, metadata = bytes(range(256)) * 40, {"fleet-counts": '{"completed":3,"reasons":{"empty":1}}'}
    assert store.put_new("a/b.zst", body, metadata)
    assert store.get("a/b.zst") == body
    info = store.head("a/b.zst")
    assert info is not None
    assert (info.key, info.size_bytes, dict(info.metadata)) == ("a/b.zst", len(body), metadata)


def test_body_and_metadata_come_together(store: ObjectStore) -> None:
    store.put("a/b", b"body", {"k": "v"})
    assert store.get_with_metadata("a/b") == (b"body", {"k": "v"})
    store.put("a/b", b"other")
    assert store.get_with_metadata("a/b") == (b"other", {})


def test_what_is_not_there_is_none(store: ObjectStore) -> None:
    assert store.get_with_metadata("none") is None
    assert store.get("nothing/here") is None
    assert store.head("nothing/here") is None
    assert list(store.list("nothing/")) == []
    store.delete("nothing/here")


def test_a_second_put_new_changes_nothing(store: ObjectStore) -> None:
    assert store.put_new("k", b"first", {"n": "1"})
    assert not store.put_new("k", b"second", {"n": "2"})
    assert store.get("k") == b"first"
    info = store.head("k")
    assert info is not None
    assert info.metadata["n"] == "1"


def test_of_many_writers_at_once_one_wins_and_its_object_is_whole(store: ObjectStore) -> None:
    barrier = threading.Barrier(12)

    def write(number: int) -> bool:
        barrier.wait()
        return store.put_new("race", f"{number}".encode() * 50_000, {"writer": str(number)})

    with ThreadPoolExecutor(12) as threads:
        won = [number for number, wrote in enumerate(threads.map(write, range(12))) if wrote]
    assert len(won) == 1
    info, body = store.head("race"), store.get("race")
    assert info is not None
    assert info.metadata["writer"] == str(won[0])
    assert body == f"{won[0]}".encode() * 50_000


def test_put_replaces(store: ObjectStore) -> None:
    store.put("k", b"first", {"n": "1"})
    store.put("k", b"second")
    info = store.head("k")
    assert store.get("k") == b"second"
    assert info is not None
    assert "n" not in info.metadata


def test_a_file_is_stored_whole(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"0123456789abcdef" * 700_000)  # more than one part of a multipart upload
    store.put_file("big", source)
    assert store.get("big") == source.read_bytes()


def test_list_is_sorted_complete_and_bound_to_its_prefix(store: ObjectStore) -> None:
    keys = [f"runs/a/inputs/{number:08d}.jsonl.zst" for number in (3, 1, 2, 1_200)]
    for key in [*keys, "runs/ab/inputs/x", "runs/a/manifest.json"]:
        store.put(key, b"x", {"m": "1"})
    assert [info.key for info in store.list("runs/a/inputs/")] == sorted(keys)
    assert [info.key for info in store.list("runs/a/")] == [*sorted(keys), "runs/a/manifest.json"]
    assert all(info.size_bytes == 1 for info in store.list("runs/"))


def test_list_of_a_prefix_that_is_part_of_a_name_and_of_everything(store: ObjectStore) -> None:
    for key in ("a/one", "a/other", "b"):
        store.put(key, b"x")
    assert [info.key for info in store.list("a/o")] == ["a/one", "a/other"]
    assert [info.key for info in store.list("")] == ["a/one", "a/other", "b"]


def test_an_empty_store_lists_nothing_of_its_surroundings(tmp_path: Path) -> None:
    (tmp_path / "beside").write_text("x")
    assert list(opened(f"file://{tmp_path}/store").list("")) == []


def test_metadata_that_a_power_loss_took_is_none(tmp_path: Path) -> None:
    store = opened(f"file://{tmp_path}")
    store.put_new("k", b"x", {"m": "1"})
    (tmp_path / ".meta" / "k.json").write_bytes(b"")
    info = store.head("k")
    assert info is not None
    assert info.metadata == {}


def test_deleted_is_gone(store: ObjectStore) -> None:
    store.put("k", b"x", {"m": "1"})
    store.delete("k")
    assert store.get("k") is None
    assert store.put_new("k", b"y")


def test_check_passes_and_leaves_nothing(store: ObjectStore) -> None:
    assert store.check() is None
    assert list(store.list("")) == []


def test_two_prefixes_of_one_bucket_do_not_see_each_other(s3_url: str) -> None:
    one, two = opened(f"{s3_url}/one"), opened(f"{s3_url}/two")
    one.put("k", b"1")
    assert two.get("k") is None
    assert list(two.list("")) == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "InvalidAccessKeyId"),
    ],
)
def test_wrong_credentials_are_denied_with_the_next_step(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreDenied, match=f"{words}.*check the credentials, the bucket and its policy"):
        opened(s3_url).put("k", b"x")


def test_a_missing_bucket_is_denied(s3_url: str) -> None:
    with pytest.raises(StoreDenied, match="NoSuchBucket"):
        opened("s3://no-such-bucket/x").put("k", b"x")


def test_a_store_that_does_not_answer_is_unavailable(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StoreUnavailable, match="check FLEET_STORE and AWS_ENDPOINT_URL"):
        opened(s3_url).get("k")


def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable, match="write k: Not a directory"):
        opened(f"file://{tmp_path}/file/below").put("k", b"x")


def test_credentials_that_were_replaced_are_taken_without_a_new_store(
    s3_access: S3Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = tmp_path / "credentials"

    def write(secret: str) -> None:
        credentials.write_text(
            f"[default]\naws_access_key_id = {s3_access.access_key}\naws_secret_access_key = {secret}\n", encoding="utf-8"
        )

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_access.endpoint)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    write("of yesterday")
    store = open_store(FleetSettings(broker="redis://127.0.0.1:1/0", store=f"s3://{s3_access.bucket}/{uuid.uuid4().hex}"))
    with pytest.raises(StoreDenied, match="check the credentials"):
        store.put_new("key", b"body")
    write(s3_access.secret_key)
    assert store.put_new("key", b"body")
    assert store.get("key") == b"body"
