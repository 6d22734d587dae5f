"""`roost version`."""

from __future__ import annotations

import argparse
import platform

from ... import __version__


def run(arguments: argparse.Namespace) -> int:
    """Print the versions."""
    print(f"roost {__version__} (Python {platform.python_version()})")
    return 0
