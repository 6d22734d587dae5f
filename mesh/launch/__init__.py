"""The process tree of one host: zygotes, workers, their deaths and what they leave behind."""

from __future__ import annotations

from .atfork import on_user_fork
from .launcher import Launcher
from .report import ExitReport
from .spec import BARE, Launched, LaunchError, ProcSpec, ZygoteKey, zygote_key

__all__ = [
    "BARE",
    "ExitReport",
    "LaunchError",
    "Launched",
    "Launcher",
    "ProcSpec",
    "ZygoteKey",
    "on_user_fork",
    "zygote_key",
]
