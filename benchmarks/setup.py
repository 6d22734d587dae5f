"""Make one virtual environment a peer under `.bench/`: `python benchmarks/setup.py [name ...]`.

Peers have conflicting dependencies, so each has its own. torch goes in first and its version is checked
again at the end: a peer must not replace the CPU build by a CUDA one, or the comparison would no longer be
of the same tensors. A finished environment holds a stamp of what was asked for and is left alone next time.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
ENVS = REPO / ".bench"
TORCH = "torch==2.13.0"


@dataclass(frozen=True, slots=True)
class Environment:
    """What one peer's environment is made of, in pip's words."""

    requirements: tuple[str, ...]
    module: str
    torch: bool = True


ENVIRONMENTS = {
    "roost": Environment(("-e", str(REPO)), "roost"),
    "monarch": Environment(("torchmonarch==0.7.0",), "monarch"),
    "ray": Environment(("ray==2.60.0",), "ray"),
    "xoscar": Environment(("xoscar==0.12.2",), "xoscar"),
    # xoscar imports torch in every process wherever it is installed: the cases without torch need another.
    "xoscar-bare": Environment(("numpy", "xoscar==0.12.2"), "xoscar", torch=False),
}
PEERS = ("roost", "monarch", "ray", "xoscar")


def python_of(peer: str, bare: bool = False) -> Path:
    """The interpreter of a peer's environment; `bare` for a case without torch."""
    name = f"{peer}-bare" if bare and f"{peer}-bare" in ENVIRONMENTS else peer
    return ENVS / name / "bin" / "python"


def make(name: str) -> None:
    """Create an environment unless it stands already; raise if torch was replaced on the way."""
    environment = ENVIRONMENTS[name]
    folder = ENVS / name
    stamp = folder / "roost-bench.stamp"
    wanted = "\n".join((sys.version, TORCH, *environment.requirements))
    if stamp.exists() and stamp.read_text() == wanted:
        print(f"{name}: ready")
        return
    if folder.exists():
        shutil.rmtree(folder)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(python_of(name))
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    constraint = folder / "constraints.txt"
    constraint.write_text("")
    if environment.torch:
        subprocess.run([*pip, TORCH, "numpy"], check=True)
        constraint.write_text(f"torch=={_torch_version(python)}\n")
    subprocess.run([*pip, "-c", str(constraint), *environment.requirements], check=True)
    if environment.torch and "+cpu" not in _torch_version(python):
        raise SystemExit(f"{name}: torch became {_torch_version(python)}; expected the CPU build of {TORCH}")
    subprocess.run([python, "-c", f"import numpy, {environment.module}"], check=True)
    stamp.write_text(wanted)
    print(f"{name}: made")


def _torch_version(python: str) -> str:
    code = "import importlib.metadata as m; print(m.version('torch'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Make the environments named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ENVIRONMENTS)}; default: all")
    names = parser.parse_args().names or list(ENVIRONMENTS)
    if unknown := [name for name in names if name not in ENVIRONMENTS]:
        parser.error(f"no environment named {', '.join(unknown)}")
    for name in names:
        make(name)


if __name__ == "__main__":
    main()
