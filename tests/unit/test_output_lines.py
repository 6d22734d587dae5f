"""Folding of lines, filters, and how a file's bytes become lines: with a virtual clock and without processes."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.actors.peer import Peer
from roost.actors.refs import ProcRef
from roost.mesh.agent import output as tail_module
from roost.mesh.agent.output import OutputTail
from roost.mesh.console import output as console_module
from roost.mesh.console.fold import Folder
from roost.mesh.console.output import Console, Options
from roost.mesh.console.screen import Screen, pieces

WINDOW = 0.5


def test_the_first_of_equal_lines_is_shown_at_once_and_the_others_together() -> None:
    folder = Folder()
    ranks = (3, 0, 1, 2, 4, 6, 7)
    shown = [folder.feed(0.01 * i, "trainer", rank, "NCCL 2.21", WINDOW) for i, rank in enumerate(ranks)]
    assert shown == [["[trainer-3] NCCL 2.21"], [], [], [], [], [], []]
    assert folder.due() == pytest.approx(0.51)
    assert folder.flush(0.4) == []
    assert folder.flush(0.52) == ["[trainer 0-2,4,6-7] NCCL 2.21"]
    assert folder.due() is None


def test_repeated_lines_of_one_rank_are_counted() -> None:
    folder = Folder()
    assert folder.feed(0, "t", 0, "retrying", WINDOW) == ["[t-0] retrying"]
    assert [line for i in range(120) for line in folder.feed(i / 1000, "t", 0, "retrying", WINDOW)] == []
    assert folder.flush(0.6) == ["[t-0] retrying (repeated 120 times)"]


def test_a_line_that_goes_on_is_shown_once_a_window() -> None:
    folder = Folder()
    shown = [(i, line) for i in range(100) for line in folder.feed(i * 0.1, "t", 0, "tick", WINDOW)]
    assert 10 <= len(shown) <= 25
    assert sum(int(m[1]) if (m := re.search(r"repeated (\d+)", line)) else 1 for _, line in shown) >= 90


def test_numbers_in_lines_are_not_masked() -> None:
    folder = Folder()
    assert folder.feed(0, "t", 0, "step 1", WINDOW) == ["[t-0] step 1"]
    assert folder.feed(0, "t", 0, "step 2", WINDOW) == ["[t-0] step 2"]


def test_a_new_line_sends_ahead_what_is_held_of_its_rank_alone() -> None:
    folder = Folder()
    for _ in range(4):
        folder.feed(0, "t", 0, "again", WINDOW)
    assert folder.feed(0.1, "t", 0, "done", WINDOW) == ["[t-0] again (repeated 3 times)", "[t-0] done"]


def test_a_line_behind_one_that_is_held_for_several_ranks_waits_with_it() -> None:
    folder = Folder()
    for rank in range(3):
        folder.feed(0, "t", rank, "hello", WINDOW)
    assert folder.feed(0.1, "t", 1, "unlike", WINDOW) == []
    assert folder.flush(0.5) == ["[t 1-2] hello", "[t-1] unlike"]


def test_meshes_are_not_folded_into_each_other() -> None:
    folder = Folder()
    assert folder.feed(0, "a", 0, "hello", WINDOW) == ["[a-0] hello"]
    assert folder.feed(0, "b", 0, "hello", WINDOW) == ["[b-0] hello"]


def test_without_a_window_each_line_is_shown_as_it_is() -> None:
    folder = Folder()
    folder.feed(0, "t", 0, "x", WINDOW)
    folder.feed(0, "t", 1, "x", WINDOW)
    assert folder.feed(0.1, "t", 1, "x", None) == ["[t-1] x", "[t-1] x"]
    assert folder.feed(0.1, "t", 1, "x", None) == ["[t-1] x"]


def test_meshes_that_have_gone_are_forgotten() -> None:
    folder = Folder()
    for i in range(1000):
        folder.feed(float(i), f"procs{i}", 0, "hello", WINDOW)
    assert len(folder._meshes) <= 64


def _expanded(lines: list[str]) -> list[tuple[set[int], str, int]]:
    found = []
    for line in lines:
        match = re.fullmatch(r"\[t[- ]([\d,-]+)\] (\w+)(?: \(repeated (\d+) times\))?", line)
        assert match, line
        ranks = set()
        for part in match[1].split(","):
            first, _, last = part.partition("-")
            ranks |= set(range(int(first), int(last or first) + 1))
        found.append((ranks, match[2], int(match[3] or len(ranks))))
    return found


def _compressed(texts: list[str]) -> list[str]:
    return [text for i, text in enumerate(texts) if i == 0 or texts[i - 1] != text]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.sampled_from([0.0, 0.2, 0.6])), max_size=60))
def test_no_line_is_lost_and_every_rank_keeps_its_order(written: list[tuple[int, str, float]]) -> None:
    folder, now, lines = Folder(), 0.0, []
    for rank, text, pause in written:
        now += pause
        lines += folder.feed(now, "t", rank, text, WINDOW)
    shown = _expanded(lines + folder.flush(now, everything=True))
    for text in "abc":
        assert sum(count for _, known, count in shown if known == text) == sum(w[1] == text for w in written)
    for rank in range(4):
        theirs = [text for who, text, _ in written if who == rank]
        assert _compressed([text for ranks, text, _ in shown if rank in ranks]) == _compressed(theirs)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=40))
def test_nothing_waits_for_longer_than_the_window(written: list[tuple[int, str]]) -> None:
    folder = Folder()
    for i, (rank, text) in enumerate(written):
        now = i * 0.1
        folder.flush(now)
        folder.feed(now, "t", rank, text, WINDOW)
        due = folder.due()
        assert due is None or due <= now + WINDOW


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("DEBUG:root:x", False),
        ("2026-11-30 20:00:00,123 train INFO started", False),
        ("[W1] WARNING disk", True),
        ("ERROR:root:x", True),
        ("loss 0.3", True),
        ("information", True),
    ],
)
def test_a_level_leaves_out_lines_of_the_logging_module_below_it(line: str, wanted: bool) -> None:
    assert Options(level=logging.WARNING).wants(line) is wanted


def test_a_regex_keeps_what_it_is_found_in() -> None:
    options = Options.from_wire([0.5, logging.INFO, r"loss=\d"])
    assert options.wants("step 3 loss=2") and not options.wants("step 3") and not options.wants("DEBUG loss=2")


class _Paper(Screen):
    """A screen that keeps what is written; it takes nothing while `held`."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self.free = threading.Event()
        self.free.set()

    def write(self, text: str, cell: Any) -> None:
        assert self.free.wait(10)
        self._parts.append(text)

    @property
    def text(self) -> str:
        return "".join(self._parts)


def test_a_screen_that_takes_nothing_holds_nobody_up_and_what_is_dropped_is_counted() -> None:
    paper = _Paper()
    console = Console(paper)
    paper.free.clear()
    line = "x" * 1000
    for i in range(10_000):  # 10 MB; `arrived` must not wait
        console.arrived(None, 1, "t-0", f"{i} {line}", 0, "/log")  # type: ignore[arg-type]
    paper.free.set()
    console.close()
    lines = paper.text.splitlines()
    dropped = [int(m[1]) for text in lines if (m := re.search(r"\((\d+) bytes were dropped here", text))]
    kept = sum(len(text) - len("[t-0] ") for text in lines if text.endswith("x"))
    written = sum(len(f"{i} {line}") for i in range(10_000))
    assert lines[-1].startswith("[t-0] 9999 ")
    assert sum(dropped) + kept == written and kept <= console_module.QUEUE + 2 * 1006
    assert not console._thread or not console._thread.is_alive()


def test_closing_shows_what_is_held() -> None:
    paper = _Paper()
    console = Console(paper)
    for rank in range(4):
        console.arrived(None, rank, f"t-{rank}", "ready", 0, "/log")  # type: ignore[arg-type]
    console.close()
    assert sorted(paper.text.splitlines()) == ["[t 1-3] ready", "[t-0] ready"]


def test_options_hold_from_where_they_come() -> None:
    paper = _Paper()
    console = Console(paper)
    console.arrived(None, 1, "t-0", "DEBUG one", 0, "/log")  # type: ignore[arg-type]
    console.configure(None, [1], [None, logging.INFO, None])  # type: ignore[arg-type]
    console.arrived(None, 1, "t-0", "DEBUG two\nthree", 0, "/log")  # type: ignore[arg-type]
    console.close()
    assert paper.text.splitlines() == ["[t-0] DEBUG one", "[t-0] three"]


def test_text_is_written_in_whole_lines() -> None:
    text = "".join(f"{i} {'x' * (i % 300)}\n" for i in range(300))
    parts = pieces(text)
    assert "".join(parts) == text and all(part.endswith("\n") and len(part) <= 4096 for part in parts)
    assert "".join(pieces("y" * 10_000)) == "y" * 10_000


class _Tail:
    """An OutputTail whose agent is a list of what it would have sent, and whose clock is turned by hand."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(tail_module.time, "monotonic", lambda: self.now)
        self.sent: list[list[Any]] = []
        self.peer = Peer(1, "controller")
        self.node = SimpleNamespace(system={}, event=lambda peer, *fields: self.sent.append(list(fields)))
        self.tail = OutputTail(self.node, path.parent)  # type: ignore[arg-type]
        self.path = Path(self.tail.path("t-0", 7))
        self.path.touch()
        self.follow()

    def follow(self, epoch: int = 1) -> None:
        ref = ProcRef(7, "t-0", "n", "host", "unix:///x", 2, "tcp://h:1", epoch)
        self.tail.follow(ref, self.peer)

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def look(self, seconds: float = 0.05) -> list[str]:
        self.now += seconds
        before = len(self.sent)
        self.tail.flush(self.node, self.peer, [], b"")  # type: ignore[arg-type]
        return self.lines(before)

    def lines(self, since: int = 0) -> list[str]:
        return [line for event in self.sent[since:] if event[0] == "output" for line in event[3].split("\n")]

    def set(self, *, silent: bool) -> None:
        self.tail.set_options(self.node, self.peer, [[7], silent, [None, 20, None]], b"")  # type: ignore[arg-type]


@pytest.fixture
def tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Tail:
    return _Tail(tmp_path / "t.log", monkeypatch)


def test_full_lines_are_forwarded_at_the_next_look(tail: _Tail) -> None:
    tail.write(b"one\ntwo\nthr")
    assert tail.look() == ["one", "two"]
    tail.write(b"ee\n")
    assert tail.look() == ["three"]


def test_a_line_without_end_appears_after_a_quarter_of_a_second(tail: _Tail) -> None:
    tail.write(b"Continue? ")
    assert tail.look() == []
    assert tail.look(0.3) == ["Continue? "]
    tail.write(b"yes\n")
    assert tail.look() == ["yes"]


def test_of_a_progress_bar_its_states_are_shown_now_and_then_and_at_its_end(tail: _Tail) -> None:
    shown = []
    for percent in range(100):
        tail.write(f"\r{percent}%".encode())
        shown += tail.look(0.05)
        shown += tail.look(0.05)
    assert 3 <= len(shown) <= 6
    tail.write(b"\r100%\n")
    assert tail.look() == ["100%"]


def test_windows_line_ends_are_line_ends(tail: _Tail) -> None:
    tail.write(b"one\r\ntwo\r\n")
    assert tail.look() == ["one", "two"]


def test_all_that_a_dead_worker_wrote_is_forwarded(tail: _Tail) -> None:
    lines = [f"line {i} {'x' * 90}" for i in range(20_000)]  # 2 MB: many reads
    tail.write("\n".join(lines).encode())
    tail.tail.last(7)
    assert tail.lines() == lines
    assert all(event[4] == 0 for event in tail.sent)


def test_of_a_dead_worker_that_wrote_too_much_the_end_is_forwarded_and_the_rest_counted(tail: _Tail) -> None:
    line = b"y" * 99 + b"\n"
    tail.write(line * 100_000)
    tail.write(b"the end")
    tail.tail.last(7)
    lines = tail.lines()
    dropped = sum(event[4] for event in tail.sent)
    assert lines[-1] == "the end"
    assert dropped + 100 * (len(lines) - 1) == 100 * 100_000


def test_while_the_receiver_is_behind_nothing_is_read_and_nothing_lost(tail: _Tail) -> None:
    tail.peer.outbox.kept_bytes = tail_module.BEHIND + 1
    tail.write(b"one\n")
    assert tail.look() == []
    tail.peer.outbox.kept_bytes = 0
    assert tail.look() == ["one"]


def test_what_is_far_behind_is_dropped_up_to_the_newest_and_counted(tail: _Tail) -> None:
    line = b"z" * 99 + b"\n"
    count = 2 * tail_module.BACKLOG // len(line)
    tail.write(line * count)
    shown = len(tail.look())
    while more := len(tail.look()):
        shown += more
    dropped = sum(event[4] for event in tail.sent)
    assert dropped + 100 * shown == 100 * count
    assert 0 < 100 * shown <= tail_module.KEPT


def test_silenced_output_is_not_read_and_later_lines_are_shown_again(tail: _Tail) -> None:
    tail.write(b"before\n")
    tail.set(silent=True)
    tail.write(b"meanwhile\n")
    assert tail.look() == []
    tail.set(silent=False)
    tail.write(b"after\n")
    tail.look()
    assert tail.lines() == ["before", "after"]
    assert [event[0] for event in tail.sent] == ["output", "output options", "output options", "output"]


def test_who_takes_the_place_of_a_silenced_process_is_silent_too(tail: _Tail) -> None:
    tail.set(silent=True)
    tail.tail.last(7)
    tail.follow(epoch=2)
    tail.write(b"one\n")
    assert tail.look() == []
    tail.tail.last(7)
    tail.follow(epoch=1)  # another mesh of that name
    tail.write(b"two\n")
    assert tail.look() == ["two"]


def test_a_file_that_was_cut_is_read_from_its_new_beginning(tail: _Tail) -> None:
    tail.write(b"one\ntwo\n")
    tail.look()
    tail.path.write_bytes(b"new\n")
    assert tail.look() == ["new"]
