"""`ops simulate-engine`: a simulated SGLang server in the foreground."""

from pathlib import Path

import click

from ops.serving import serve
from ops.simulator.engine import EngineOptions, SimulatedEngine
from ops.simulator.faults import FaultPlan, load_faults
from ops.simulator.lengths import LengthModel
from ops.simulator.server import SimulatedServer
from ops.simulator.wire import VERSIONS


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=30000, show_default=True)
@click.option("--version", type=click.Choice(VERSIONS), default=VERSIONS[0], show_default=True, help="Whose API.")
@click.option("--model", default="simulated", show_default=True, help="Served model name.")
@click.option("--max-running", type=click.IntRange(1), default=16, show_default=True, help="Requests that decode at once.")
@click.option("--max-queued", type=click.IntRange(0), help="Answer 503 when so many wait; no limit if not given.")
@click.option("--mean-tokens", type=float, default=200.0, show_default=True, help="Mean length of an answer before the cap.")
@click.option("--sigma", type=float, default=1.0, show_default=True, help="Spread of the logarithm of the lengths.")
@click.option("--cap", type=int, default=4096, show_default=True, help="Longest natural answer.")
@click.option(
    "--tokens-per-second", type=float, default=100.0, show_default=True, help="Of one request alone; 0 answers at once."
)
@click.option("--speed", type=float, default=1.0, show_default=True, help="Everything so many times faster.")
@click.option("--context-length", type=int, default=32_768, show_default=True)
@click.option("--reasoning-parser", type=click.Choice(["none", "qwen3"]), default="none", show_default=True)
@click.option("--thinking-share", type=float, default=0.6, show_default=True, help="Of a chat answer, when thinking is on.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--faults", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="TOML file of [[fault]] tables.")
@click.option("--requests-kept", type=int, default=1_000_000, show_default=True, help="For /simulator/requests.")
def simulate_engine(
    host: str,
    port: int,
    version: str,
    model: str,
    max_running: int,
    max_queued: int | None,
    mean_tokens: float,
    sigma: float,
    cap: int,
    tokens_per_second: float,
    speed: float,
    context_length: int,
    reasoning_parser: str,
    thinking_share: float,
    seed: int,
    faults: Path | None,
    requests_kept: int,
) -> None:
    """Serve SGLang's API without a model: lengths and times are drawn, words mean nothing.

    Faults: POST /simulator/faults {"fault": [{"kind": "status", "code": 500, "share": 0.01}]}. What it was asked: GET
    /simulator/requests.

    Example: ops simulate-engine --port 30000 --max-running 40 --mean-tokens 800 --sigma 1 --tokens-per-second 60
    """
    try:
        plan = load_faults(faults) if faults else FaultPlan()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    options = EngineOptions(
        version=version,
        model=model,
        max_running=max_running,
        lengths=LengthModel(mean_tokens, sigma, cap, seed),
        tokens_per_s=tokens_per_second,
        speed=speed,
        context_length=context_length,
        max_queued=max_queued,
        reasoning=reasoning_parser != "none",
        thinking_share=thinking_share,
        requests_kept=requests_kept,
    )
    click.echo(f"SIMULATED SGLang {version} on http://{host}:{port}: no model, words without meaning")
    server = SimulatedServer(SimulatedEngine(options, plan))
    serve(server.application(), host, port, handler_cancellation=True)
