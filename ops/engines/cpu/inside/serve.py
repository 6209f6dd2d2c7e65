"""Start the real SGLang server on a CPU. Runs in SGLang's environment; its top level runs in the server's children too."""

import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "stubs"))
sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
import torchvision_ops  # noqa: F401  (before anything imports torchvision)

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
