"""What a program and an agent leave in their run directory, so that the command line finds them.

`job.json` is the program's, `agent.json` and `secret` the agent's. The folder is its user's alone (0700), and so is the
secret (0600): whoever may read it may also signal the processes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from .place import here

JOB, AGENT, SECRET = "job.json", "agent.json", "secret"


def write_job(run_dir: str) -> None:
    """The card of this program."""
    _write(run_dir, JOB, {"place": here(), "argv": sys.argv, "cwd": os.getcwd(), "started": time.time()})


def write_agent(config: dict[str, Any], address: str) -> None:
    """The card of this agent, and the secret that it asks of those that dial it."""
    run_dir = config["run_dir"]
    with open(os.open(Path(run_dir) / SECRET, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(config["secret"])
    card = {name: config.get(name) for name in ("name", "host", "proc_id", "node_id", "log_dir", "stays", "job")}
    _write(run_dir, AGENT, {"place": here(), "address": address, "started": time.time(), **card})


def _write(run_dir: str, name: str, card: dict[str, Any]) -> None:
    draft = Path(run_dir) / f"{name}.new"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(card, file)
    draft.rename(Path(run_dir) / name)
