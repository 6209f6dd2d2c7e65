"""`ops quickstart`: prompts in, completions out, on one machine, with everything started and stopped.

Starts a Redis, an S3 server, an engine, a worker and Flower, all its own: a simulated engine must never answer the prompts of a
fleet that does real work. Then does what a user would do with the `producer` command, so what it shows is what it teaches.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ops.quickstart import engines, left_up
from ops.quickstart.processes import ChildFailed, ChildProcess, exit_on_termination, free_port, listens
from ops.quickstart.servers import redis_server, remove_sockets, s3_server
from workers.contract.errors import EXIT_DONE, EXIT_ENGINE, EXIT_FAILED

OWN_FLEET = ("FLEET_", "AWS_")
"""Variables that begin so describe the user's fleet, and nothing of it is touched here."""
KEPT = frozenset({"AWS_CA_BUNDLE"})
EXAMPLE = Path(__file__).with_name("prompts.jsonl")
FLOWER_CONFIG = Path(__file__).parents[1] / "flower" / "flowerconfig.py"
SHOWN = 4
RUN_WITHIN_S = 1800.0
STALLED_AFTER_S = 300.0
FIRST_LOOK_S, LONGEST_LOOK_S = 0.5, 4.0
"""Between two looks at the status. Each costs half a second of CPU, which the engine wants on a small machine."""

console = Console(highlight=False, soft_wrap=True)


@dataclass
class Fleet:
    """What runs, and how to reach it."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    children: list[ChildProcess] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)

    def start(self, child: ChildProcess) -> None:
        """Start one part and say so."""
        begun = time.monotonic()
        with console.status(f"starting {child.name} …"):
            child.start()
        self.children.append(child)
        console.print(f"  [green]✓[/] {child.name} [dim]{time.monotonic() - begun:.1f} s[/]")

    def stop(self) -> None:
        """Stop all parts, the last first."""
        with console.status("stopping …"):
            for child in reversed(self.children):
                child.stop()
                remove_sockets(child.argv)

    def producer(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the producer command as a user would, and say which."""
        console.print(f"\n[bold]$ producer {escape(shlex.join(arguments))}[/]")
        return self._run(arguments, capture=False)

    def quietly(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the producer command and keep what it prints."""
        return self._run(arguments, capture=True)

    def _run(self, arguments: tuple[str, ...], *, capture: bool) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [beside_python("producer"), *arguments],
            env={**os.environ, **self.environment},
            text=True,
            capture_output=capture,
            check=False,
        )


def beside_python(name: str) -> str:
    """Path of a console script of this environment."""
    return str(Path(sys.executable).with_name(name))


@click.command()
@click.option("--simulated", is_flag=True, help="Use a simulated engine instead of the real SGLang.")
@click.option("--prompts", type=click.Path(path_type=Path), default=EXAMPLE, help="File of prompts; 24 examples if not given.")
@click.option("--max-tokens", type=int, default=64, show_default=True, help="Longest answer, in tokens.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where data, logs and the result lie; out/<time> if not given.")
@click.option("--keep", is_flag=True, help="Leave everything up and print the addresses.")
def quickstart(simulated: bool, prompts: Path, max_tokens: int, folder: Path | None, keep: bool) -> None:
    """Run a small job end to end on this machine.

    Redis and the store are its own, whatever FLEET_BROKER and FLEET_STORE say. So is the engine, unless ENGINE_URL names one
    and --simulated is not given.

    Example: ops quickstart --simulated --prompts my.jsonl
    """
    folder = (folder or Path("out") / time.strftime("%Y%m%d-%H%M%S")).absolute()
    fleet = Fleet(folder)
    leave_alone_the_users_fleet(simulated=simulated)
    exit_on_termination()
    with ExitStack() as stack:
        stack.callback(fleet.stop)
        try:
            code = run_all(fleet, prompts, max_tokens, simulated=simulated)
        except (ChildFailed, engines.EngineNotInstalled, RuntimeError) as error:
            console.print(f"[red]{escape(str(error))}[/]")
            code = EXIT_ENGINE if isinstance(error, engines.EngineNotInstalled) else EXIT_FAILED
        if keep and fleet.addresses:
            stack.pop_all()
            tell_how_to_stop(fleet)
    sys.exit(code)


def leave_alone_the_users_fleet(*, simulated: bool) -> None:
    """Forget the variables that name it, and say which."""
    mine = {name for name in os.environ if name.startswith(OWN_FLEET)} - KEPT
    names = [*mine, *({"ENGINE_URL"}.intersection(os.environ) if simulated else ())]
    for name in names:
        del os.environ[name]
    if names:
        console.print(f"[dim]a fleet of its own, so these variables are not used: {', '.join(sorted(names))}[/]")


def run_all(fleet: Fleet, prompts: Path, max_tokens: int, *, simulated: bool) -> int:
    """Start, run, check, show; returns the exit code."""
    run = f"quickstart-{fleet.folder.name}".replace("_", "-")[:64]
    enqueue = ("enqueue", str(prompts), "--run", run, "--max-tokens", str(max_tokens), "--batch-size", "8")
    looked = fleet.quietly(*enqueue, "--dry-run")
    if looked.returncode:  # before minutes are spent on an installation
        console.print(f"[red]{escape(looked.stderr.strip())}[/]")
        return looked.returncode
    engine_url = os.environ.get("ENGINE_URL")
    if engine_url and not engines.answers(f"{engine_url.rstrip('/')}/v1/models"):
        told = f"ENGINE_URL names {engine_url}, and nothing answers there; unset it to use an engine of this machine"
        console.print(f"[red]{escape(told)}[/]")
        return EXIT_ENGINE
    fleet.folder.mkdir(parents=True, exist_ok=True)
    start_all(fleet, simulated=simulated)
    result = fleet.folder / "completions.jsonl"
    done = fleet.producer(*enqueue)
    if done.returncode:
        return done.returncode
    if not watch(fleet, run):
        return EXIT_FAILED
    for step in (["status", run], ["audit", run], ["collect", run, "-o", str(result), "--with-input", "--force"]):
        done = fleet.producer(*step)
        if done.returncode:
            return done.returncode
    show(result, simulated=simulated)
    console.print(f"\nAll rows: [bold]{result}[/]   logs: {fleet.folder}")
    console.print(
        "Next: your own prompts with [bold]make run PROMPTS=file.jsonl[/]; your own GPUs: README, 'On your own GPUs'."
    )
    return EXIT_DONE


def start_all(fleet: Fleet, *, simulated: bool) -> None:
    """Start everything, but an engine that ENGINE_URL names."""
    given_engine = os.environ.get("ENGINE_URL")
    if not simulated and not given_engine:
        engines.install_cpu_engine()
    console.print("[bold]Starting the fleet[/]")
    environment = fleet.environment
    redis = redis_server(fleet.folder / "redis")
    environment["FLEET_BROKER"] = f"redis://127.0.0.1:{redis.argv[list(redis.argv).index('--port') + 1]}/0"
    fleet.start(redis)
    s3, access = s3_server(fleet.folder / "s3")
    environment.update(access.environment, FLEET_STORE=f"s3://{access.bucket}/fleet")
    fleet.start(s3)
    if given_engine:
        environment["ENGINE_URL"] = given_engine
    else:
        make = engines.simulated_engine if simulated else engines.cpu_engine
        engine, environment["ENGINE_URL"] = make(fleet.folder)
        fleet.start(engine)
    fleet.start(worker(fleet))
    flower_port = free_port()
    fleet.start(flower(fleet, flower_port))
    fleet.addresses = {
        "Flower": f"http://127.0.0.1:{flower_port}",
        "Redis": environment["FLEET_BROKER"],
        "store": environment["FLEET_STORE"],
        "engine": environment["ENGINE_URL"],
    }
    console.print(f"  Flower shows workers and batches at {fleet.addresses['Flower']}, as long as this runs")


def worker(fleet: Fleet, name: str = "gpu0") -> ChildProcess:
    """A worker, not yet started; ready when it has met its engine."""
    log_path = fleet.folder / f"worker-{name}.log"
    return ChildProcess(
        name=f"worker {name}",
        argv=[sys.executable, "-W", "ignore", "-m", "celery", "-A", "workers", "worker", "-n", f"{name}@%h"],
        log_path=log_path,
        ready=lambda: log_path.exists() and "worker.ready" in log_path.read_text(errors="replace"),
        ready_within_s=60.0,
        env=fleet.environment,
        stop_signals=((signal.SIGTERM, 30.0),),
    )


def flower(fleet: Fleet, port: int) -> ChildProcess:
    """Flower, not yet started."""
    argv = [sys.executable, "-m", "celery", "-A", "workers", "flower", f"--port={port}", f"--conf={FLOWER_CONFIG}"]
    return ChildProcess("Flower", argv, fleet.folder / "flower.log", ready=lambda: listens(port), env=fleet.environment)


def watch(fleet: Fleet, run: str) -> bool:
    """Show progress until the run is complete; False if it does not get there."""
    begun = moved_at = time.monotonic()
    last, pause_s = -1, FIRST_LOOK_S
    bar = Progress(
        TextColumn("generating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[more]}"),
        TimeElapsedColumn(),
        console=console,
    )
    with bar:
        task = bar.add_task("", total=None, more="")
        while True:
            status = json.loads(fleet.quietly("status", run, "--json").stdout or "{}")
            finished = status.get("completed", 0) + status.get("failed", 0)
            now = time.monotonic()
            if finished != last:
                last, moved_at = finished, now
            tokens = status.get("total_output_tokens") or 0
            bar.update(task, total=status.get("total"), completed=finished, more=f"{tokens:,} tokens")
            if status.get("status") == "complete":
                return True
            if now - moved_at > STALLED_AFTER_S or now - begun > RUN_WITHIN_S:
                console.print(f"[red]no progress; the worker's log says why: {fleet.folder / 'worker-gpu0.log'}[/]")
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.2, LONGEST_LOOK_S)


def show(result: Path, *, simulated: bool) -> None:
    """Print some of the completions."""
    console.print(f"\n[bold]Some of the completions[/]{' [yellow](simulated: words without meaning)[/]' if simulated else ''}")
    rows = [json.loads(line) for line in result.read_text(encoding="utf-8").splitlines()]
    good = [row for row in rows if row["status"] == "ok"]
    for row in good[:SHOWN]:
        text = " ".join((row["content"] or "").split())
        shortened = text if len(text) <= 160 else text[:157] + "…"
        console.print(f"  [cyan]{escape(str(row['id']))}[/]  {escape(shortened)} [dim]({row['finish_reason']})[/]")


def tell_how_to_stop(fleet: Fleet) -> None:
    """Print the addresses, and write what uses and what stops them."""
    script = left_up.note(fleet.folder, fleet.children)
    path = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n"
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in fleet.environment.items())
    (fleet.folder / "env.sh").write_text(path + exports)
    console.print("\n[bold]Still up[/]")
    for name, address in fleet.addresses.items():
        console.print(f"  {name}: {address}")
    console.print(f"  use it: [bold]. {fleet.folder / 'env.sh'}[/]    stop it: [bold]sh {script}[/]")
