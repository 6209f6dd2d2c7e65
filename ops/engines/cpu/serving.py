"""The command line of an SGLang server on the CPU, by version and model. Starts nothing."""

from pathlib import Path

from ops.engines.cpu.install import INSIDE, venv_folder
from ops.engines.cpu.models import model_folder

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "SGLANG_CPU_OMP_THREADS_BIND": "0",  # one OpenMP thread: far steadier on two cores
}
COMMON = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none"),  # with xgrammar, 0.5.11 dies of the first JSON request on a CPU
    "--enable-metrics",
    "--sleep-on-idle",  # without it an idle server burns a core
)
_TINY = ("--max-total-tokens", "8192")  # without it the KV pool takes most of the memory
FLAGS = {
    "tiny-qwen3": _TINY,
    "tiny-chain": _TINY,
    "tiny-hybrid": (*_TINY, "--max-mamba-cache-size", "64", "--max-running-requests", "16", "--disable-overlap-schedule"),
    "smollm2-135m": (
        *("--dtype", "float32"),  # bfloat16 is twenty times slower on a CPU without AMX
        *("--context-length", "2048", "--chunked-prefill-size", "512", "--max-total-tokens", "16384"),
    ),
}
"""Server flags by model."""
FLAGS_OF_VERSION = {("0.5.23", "tiny-hybrid"): ("--mamba-radix-cache-strategy", "no_buffer")}
"""Further ones that only one version knows and needs."""


def server_command(
    cache: Path, version: str, model: str, port: int, more: tuple[str, ...] = ()
) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of a server.

    Args:
        cache: Where the version and the model were made.
        version: One of `install.VERSIONS`.
        model: One of `FLAGS`; served under this name.
        port: On 127.0.0.1.
        more: Further arguments of SGLang.
    """
    argv = [str(venv_folder(cache, version) / "bin" / "python"), str(INSIDE / "serve.py")]
    argv += ["--model-path", str(model_folder(cache, model)), "--served-model-name", model]
    argv += ["--host", "127.0.0.1", "--port", str(port), *COMMON]
    argv += [*FLAGS[model], *FLAGS_OF_VERSION.get((version, model), ()), *more]
    return argv, dict(ENVIRONMENT)
