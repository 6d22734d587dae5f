"""The controller's side: jobs, which say where hosts come from."""

from __future__ import annotations

from .jobs import JobState, ProcessJob

__all__ = ["JobState", "ProcessJob"]
