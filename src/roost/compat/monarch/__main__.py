"""`python -m roost.compat.monarch [--strict] SCRIPT ARGS…`, or `-m MODULE ARGS…`: run a program written for Monarch."""

from __future__ import annotations

import os
import sys

from . import install
from .script import run_module, run_script

_USAGE = "usage: python -m roost.compat.monarch [--strict] (SCRIPT | -m MODULE) [ARGS…]"


def main() -> None:
    """Read the options before the script; all after it are its own."""
    rest = sys.argv[1:]
    strict = rest[:1] == ["--strict"]
    rest = rest[1:] if strict else rest
    if not rest or rest == ["-m"] or rest[0] in ("-h", "--help"):
        print(_USAGE)
        raise SystemExit(0 if rest[:1] in (["-h"], ["--help"]) else 2)
    if rest[0] != "-m" and not os.path.exists(rest[0]):
        raise SystemExit(f"{_USAGE}\nthere is no script {rest[0]!r}")
    install(strict=strict)
    if rest[0] == "-m":
        run_module(rest[1], rest[2:])
    else:
        run_script(rest[0], rest[1:])


if __name__ == "__main__":
    main()
