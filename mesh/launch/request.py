"""One request of workers, while the launcher serves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from . import output
from .pool import Progress
from .spec import Launched, LaunchError, ProcSpec

GIVEN_UP = "the launch was given up"


@dataclass(slots=True, eq=False)
class Request:
    """One call of `launch`: what is to start, the answers so far, whether the caller still waits."""

    specs: Sequence[ProcSpec]
    progress: Progress
    answers: dict[int, Launched | LaunchError] = field(default_factory=dict)
    output_starts: dict[int, int] = field(default_factory=dict)
    given_up: bool = False

    def refuse(self, indices: Iterable[int], reason: str) -> None:
        for index in indices:
            spec = self.specs[index]
            self.answers.setdefault(index, LaunchError(spec.proc_id, spec.name, reason))


def prepare_output(request: Request, index: int) -> str | None:
    """Make a worker's output file; why not, where it cannot be made."""
    spec = request.specs[index]
    try:
        request.output_starts[index] = output.create(spec.output)
    except OSError as error:
        return f"its output file cannot be made: {error}"
    return None
