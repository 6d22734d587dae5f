"""Arguments of the command line, and which command they mean."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module

DONE, FAILED, USAGE = 0, 1, 2


class CommandError(Exception):
    """A command that cannot be done; the text says why, in a sentence."""


def parse_ranks(text: str) -> frozenset[int]:
    """Ranks as they are written on a command line.

    >>> sorted(parse_ranks("0-2,5"))
    [0, 1, 2, 5]
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise argparse.ArgumentTypeError(f"{text!r} are no ranks: write 0-3,8")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression of a command line."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def seconds(text: str) -> float:
    """A time of a command line.

    >>> seconds("2.5")
    2.5
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write seconds above 0, such as 2.5")
    return value


def make_parser() -> argparse.ArgumentParser:
    """The parser of `roost`."""
    parser = argparse.ArgumentParser("roost", description="Jobs of Roost on this host that are yours.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    ps = commands.add_parser("ps", help="jobs, hosts, processes and their actors")
    ps.add_argument("job", nargs="?", help="name of a job, or its beginning, or the pid of its program; default all")
    ps.add_argument("--json", action="store_true", help="one JSON document")
    ps.add_argument("--all", action="store_true", help="also what jobs that have ended have left behind")

    logs = commands.add_parser("logs", help="what processes have written")
    _choose(logs)
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what they write, until the job ends")
    logs.add_argument("-n", "--lines", type=int, default=100, help="of each process, the last so many (100)")
    logs.add_argument("--grep", type=pattern, metavar="RE", help="only lines that this is found in")

    stacks = commands.add_parser("stacks", help="what processes do now: threads and tasks of their actors")
    _choose(stacks)
    stacks.add_argument("--native", action="store_true", help="C frames too, by py-spy")
    stacks.add_argument("--timeout", type=seconds, default=3.0, help="seconds (3)")

    clean = commands.add_parser("clean", help="end jobs, and remove what ended ones have left behind")
    which = clean.add_mutually_exclusive_group()
    which.add_argument("job", nargs="?", help="end this job; without it, see --stale")
    which.add_argument("--all", action="store_true", help="end all jobs")
    which.add_argument("--stale", action="store_true", help="only jobs whose program is gone; the default")
    clean.add_argument("-y", "--yes", action="store_true", help="do not ask before a job that runs is ended")

    commands.add_parser("version", help="the version of Roost and of Python")
    return parser


def _choose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", help="name of a job, or its beginning, or the pid of its program")
    parser.add_argument("-r", "--rank", type=parse_ranks, metavar="RANKS", help="such as 0-3,8")
    parser.add_argument("--name", help="of a mesh of processes")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command: 0 when it was done, 1 when it was not or found nothing, 2 for wrong arguments."""
    arguments = make_parser().parse_args(argv)
    try:
        code: int = import_module(f".{arguments.command}", __package__).run(arguments)
        sys.stdout.flush()
    except CommandError as error:
        print(f"roost {arguments.command}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `roost logs | head`
        sys.stderr.close()
        return DONE
    return code
