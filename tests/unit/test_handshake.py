"""Who may join, what is told to those who may not, and that nothing a stranger sends does harm."""

from __future__ import annotations

import doctest
import pickle
import sys
from contextlib import suppress
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.actors.link import handshake
from roost.actors.link.handshake import (
    INFO_LIMIT,
    Handshake,
    HandshakeError,
    Identity,
    MalformedHello,
    NotRoost,
    VersionSkew,
    WrongSecret,
)

SECRET = b"the secret of one job, 32 bytes."
PYTHON = (sys.version_info[0], sys.version_info[1])
CONTROLLER = Identity(1, "head", "controller", "controller", 10, "unix:///run/c", PYTHON, "0.1.0", "2.9.0")
WORKER = Identity((1 << 63) - 1, "n7", "trainer-3", "worker", 11, "tcp://n7:4000", PYTHON, "0.1.0", "2.9.0")
HELLO_SIZE, PART = 46, 3
BUFFER_LIMIT = 8192

deterministic = settings(derandomize=True, database=None, deadline=None, max_examples=300)


def dial(**changes: object) -> Handshake:
    return Handshake(**({"secret": SECRET, "me": CONTROLLER, "dialer": True} | changes))  # type: ignore[arg-type]


def accept(**changes: object) -> Handshake:
    return Handshake(**({"secret": SECRET, "me": WORKER, "dialer": False} | changes))  # type: ignore[arg-type]


def shake(dialer: Handshake, acceptor: Handshake) -> list[bytes]:
    """Run both to the end; return the flights."""
    flights = [dialer.start()]
    flights.append(acceptor.receive(flights[0]))
    flights.append(dialer.receive(flights[1]))
    assert acceptor.receive(flights[2]) == b""
    return flights


def info_of(**changes: object) -> bytes:
    """A dialer's first flight with an info that was changed on its way out."""
    first = dial().start()
    fields = msgpack.unpackb(first[HELLO_SIZE + PART :]) | changes
    return with_info(msgpack.packb({name: value for name, value in fields.items() if value is not ...}))


def with_info(info: bytes) -> bytes:
    return dial().start()[:HELLO_SIZE] + b"\1" + len(info).to_bytes(2, "big") + info


def test_docstring_examples_are_true() -> None:
    outcome = doctest.testmod(handshake)
    assert outcome.attempted and not outcome.failed


class TestAgreement:
    def test_three_flights_make_both_sides_known_to_each_other(self) -> None:
        dialer, acceptor = dial(), accept()
        assert acceptor.start() == b""
        flights = shake(dialer, acceptor)
        assert dialer.done and acceptor.done and all(flights)
        assert dialer.peer == WORKER and acceptor.peer == CONTROLLER
        assert dialer.notes == acceptor.notes == []

    def test_keys_differ_by_direction_and_by_handshake(self) -> None:
        seen = set()
        for _ in range(2):
            dialer, acceptor = dial(), accept()
            shake(dialer, acceptor)
            assert dialer.keys and acceptor.keys
            assert (dialer.keys.send, dialer.keys.receive) == (acceptor.keys.receive, acceptor.keys.send)
            seen |= {dialer.keys.send, dialer.keys.receive}
            assert not any(repr(key) in repr(dialer.keys) for key in seen)
        assert len(seen) == 4 and all(len(key) == 32 for key in seen)

    def test_session_and_cursors_are_exchanged(self) -> None:
        asked = []

        def cursor(peer: Identity, session: bytes) -> int:
            asked.append((peer, session))
            return 77

        dialer, acceptor = dial(resume=5, session=b"s" * 16), accept(resume=cursor)
        shake(dialer, acceptor)
        assert acceptor.session == dialer.session == b"s" * 16
        assert (dialer.peer_resume, acceptor.peer_resume) == (77, 5)
        assert asked == [(CONTROLLER, b"s" * 16)]

    def test_a_new_session_has_an_id_of_its_own(self) -> None:
        assert dial().session != dial().session

    def test_bytes_may_come_one_by_one(self) -> None:
        dialer, acceptor = dial(), accept()
        to_acceptor, to_dialer = dialer.start(), b""
        while to_acceptor or to_dialer:
            sent = b"".join(acceptor.receive(bytes([byte])) for byte in to_acceptor)
            to_acceptor = b"".join(dialer.receive(bytes([byte])) for byte in sent)
            to_dialer = b""
        assert dialer.done and acceptor.done

    def test_what_follows_the_handshake_is_left_over(self) -> None:
        dialer, acceptor = dial(), accept()
        proof = dialer.receive(acceptor.receive(dialer.start()))
        assert acceptor.receive(proof + b"first frame") == b"" and acceptor.leftover == b"first frame"
        assert acceptor.receive(b", second") == b"" and acceptor.leftover == b"first frame, second"

    def test_until_it_is_done_nothing_of_the_peer_is_shown(self) -> None:
        dialer, acceptor = dial(resume=9), accept()
        acceptor.receive(dialer.start())
        assert (acceptor.peer, acceptor.keys, acceptor.notes, acceptor.peer_resume) == (None, None, [], 0)

    def test_its_repr_says_the_state(self) -> None:
        dialer = dial(where="tcp://n7:4000")
        assert repr(dialer) == "<Handshake as dialer with tcp://n7:4000: under way>"
        shake(dialer, accept())
        assert repr(dialer).endswith("done with worker 'trainer-3' (pid 11 on 'n7')>")


class TestSecret:
    def test_a_wrong_secret_is_told_to_both(self) -> None:
        dialer, acceptor = dial(where="tcp://n7:4000"), accept(secret=b"of another job")
        answer = acceptor.receive(dialer.start())
        with pytest.raises(WrongSecret, match=r"n7:4000, which calls itself worker 'trainer-3'.*Give both") as refused:
            dialer.receive(answer)
        assert dialer.keys is None and dialer.peer is None
        with pytest.raises(WrongSecret, match="the peer refused worker 'trainer-3'"):
            acceptor.receive(refused.value.reply)

    def test_an_acceptor_takes_no_proof_but_the_right_one(self) -> None:
        acceptor = accept()
        with pytest.raises(WrongSecret, match="does not hold the secret") as refused:
            acceptor.receive(dial().start() + b"\2\0\x20" + bytes(32))
        assert acceptor.keys is None and refused.value.reply

    def test_a_failed_handshake_stays_failed(self) -> None:
        acceptor = accept()
        for data in (b"GET / HTTP/1.1", dial().start()):
            with pytest.raises(NotRoost):
                acceptor.receive(data)

    def test_a_replayed_dialer_is_refused(self) -> None:
        flights = shake(dial(), accept())
        acceptor = accept()
        acceptor.receive(flights[0])
        with pytest.raises(WrongSecret):
            acceptor.receive(flights[2])

    def test_a_replayed_acceptor_is_refused(self) -> None:
        session = b"s" * 16
        flights = shake(dial(session=session), accept())
        dialer = dial(session=session)
        dialer.start()
        with pytest.raises(WrongSecret):
            dialer.receive(flights[1])

    def test_a_reflected_hello_is_refused(self) -> None:
        dialer = dial()
        with pytest.raises(MalformedHello, match="this process's own"):
            dialer.receive(dialer.start())

    def test_a_reflected_proof_is_refused_even_with_the_side_forged(self) -> None:
        """The attacker turns the dialer's own first flight round and has no proof of an acceptor to add."""
        acceptor, dialer = accept(), dial()
        answer = acceptor.receive(dialer.start())
        with pytest.raises(WrongSecret):
            acceptor.receive(answer[-(PART + 32) :])
        forged = bytearray(dialer.start())
        forged[10] = 0
        with pytest.raises(WrongSecret):
            dialer.receive(bytes(forged) + answer[-(PART + 32) :])

    @pytest.mark.parametrize("flight", [0, 1, 2])
    def test_no_bit_of_any_flight_can_be_altered(self, flight: int) -> None:
        for bit in range(0, 8 * len(shake(dial(), accept())[flight]), 5):
            sides = dialer, acceptor = dial(), accept()
            data = dialer.start()
            with suppress(HandshakeError):
                for turn in range(3):
                    if turn == flight:
                        data = (int.from_bytes(data, "big") ^ 1 << bit).to_bytes(len(data), "big")
                    data = sides[1 - turn % 2].receive(data)
            assert not acceptor.done and dialer.done == (flight == 2), f"bit {bit} was not missed"

    def test_an_answer_for_another_session_is_refused(self) -> None:
        dialer, other = dial(), dial()
        dialer.start()
        with pytest.raises(MalformedHello, match="another session"):
            dialer.receive(accept().receive(other.start()))

    def test_an_empty_secret_is_a_mistake(self) -> None:
        with pytest.raises(ValueError, match="secret is empty"):
            dial(secret=b"")


class TestVersions:
    def test_another_protocol_major_is_told_as_skew_to_both(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dialer = dial(where="tcp://n7:4000")
        monkeypatch.setattr(handshake, "PROTOCOL", (2, 3))
        acceptor = accept(secret=b"of another job")
        with pytest.raises(VersionSkew, match=r"the peer speaks Roost protocol 1\.0, .* has 2\.3") as refused:
            acceptor.receive(dialer.start()[:10])
        monkeypatch.undo()
        with pytest.raises(VersionSkew, match=r"n7:4000 speaks Roost protocol 2\.3, .* install the same Roost"):
            dialer.receive(refused.value.reply)

    def test_another_python_minor_is_told_as_skew_to_both(self) -> None:
        dialer = dial()
        acceptor = accept(me=replace(WORKER, python=(3, 99)), secret=b"of another job")
        with pytest.raises(VersionSkew, match=r"runs Python 3\.\d+, worker 'trainer-3' .* has 3\.99") as refused:
            acceptor.receive(dialer.start())
        with pytest.raises(VersionSkew, match=r"runs Python 3\.99, .* install the same Python minor"):
            dialer.receive(refused.value.reply)

    def test_another_patch_and_torch_are_noted_on_both_sides(self) -> None:
        dialer, acceptor = dial(), accept(me=replace(WORKER, roost="0.1.1", torch="2.9.0+cpu"))
        shake(dialer, acceptor)
        for side in (dialer, acceptor):
            roost, torch = side.notes
            assert "'0.1.1'" in roost and "'0.1.0'" in roost and "'2.9.0+cpu'" in torch

    def test_absent_torch_is_no_mismatch_even_if_strict(self) -> None:
        dialer, acceptor = dial(strict=True), accept(me=replace(WORKER, torch=None), strict=True)
        shake(dialer, acceptor)
        assert dialer.notes == acceptor.notes == []

    def test_a_later_protocol_minor_may_join_and_add_fields(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(handshake, "PROTOCOL", (1, 9))
        dialer = dial()
        monkeypatch.undo()
        shake(dialer, accept())
        assert accept().receive(info_of(colour="blue"))

    @pytest.mark.parametrize("change", [{"roost": "0.1.1"}, {"torch": "2.9.0+cpu"}])
    def test_strict_refuses_every_difference_and_says_so_to_the_peer(self, change: dict[str, str]) -> None:
        me = replace(WORKER, **change)  # type: ignore[arg-type]
        dialer, acceptor = dial(), accept(me=me, strict=True)
        with pytest.raises(VersionSkew, match="refused under strict=True") as refused:
            acceptor.receive(dialer.start())
        with pytest.raises(VersionSkew, match=r"refused controller 'controller' .*strict=True"):
            dialer.receive(refused.value.reply)
        strict, acceptor = dial(strict=True), accept(me=me)
        answer = acceptor.receive(strict.start())
        with pytest.raises(VersionSkew, match="refused under strict=True") as refused:
            strict.receive(answer)
        with pytest.raises(VersionSkew, match=r"refused worker 'trainer-3' .*strict=True"):
            acceptor.receive(refused.value.reply)

    def test_strict_refuses_another_protocol_minor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = dial().start()
        monkeypatch.setattr(handshake, "PROTOCOL", (1, 9))
        with pytest.raises(VersionSkew, match=r"1\.0, .* has 1\.9"):
            accept(strict=True).receive(first)


class TestStrangers:
    def test_another_protocol_is_told_at_its_first_bytes_and_gets_no_answer(self) -> None:
        with pytest.raises(NotRoost, match=r"is not a Roost process .*GET / .*check the address") as refused:
            dial(where="tcp://n7:80").receive(b"GET / ")
        assert refused.value.reply == b""

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("proc_id", "1"),
            ("proc_id", True),
            ("proc_id", -1),
            ("node_id", b"n"),
            ("name", "n" * 256),
            ("name", ...),
            ("role", "admin"),
            ("role", "worker"),
            ("pid", 1.0),
            ("pid", None),
            ("address", ["a"]),
            ("python", [3]),
            ("python", [3, 300]),
            ("python", [3, 1]),
            ("roost", None),
            ("torch", 2),
            ("session", b"short"),
            ("session", "s" * 16),
            ("resume", -1),
            ("resume", ...),
        ],
    )
    def test_fields_of_another_type_or_size_are_refused(self, field: str, value: object) -> None:
        with pytest.raises(MalformedHello, match=f"{field}|contradicts"):
            accept().receive(info_of(**{field: value}))

    @pytest.mark.parametrize(
        "info",
        [
            b"\xc1",
            b"\x01\x02",
            b"\x90",
            b"\x81\x90\x01",
            b"\x91" * 4000,
            b"\xdf\xff\xff\xff\xff",
            pickle.dumps(1),
        ],
    )
    def test_an_info_that_is_no_map_is_refused(self, info: bytes) -> None:
        with pytest.raises(MalformedHello, match="drop this connection"):
            accept().receive(with_info(info))

    def test_an_info_over_the_limit_is_refused_before_it_is_read(self) -> None:
        first = dial().start()[:HELLO_SIZE] + b"\1" + (INFO_LIMIT + 1).to_bytes(2, "big")
        with pytest.raises(MalformedHello, match="4097 bytes"):
            accept().receive(first)

    def test_a_refusal_is_shown_escaped_and_cut(self) -> None:
        reason = b"\2\x1b[31m" + b"x" * 500
        with pytest.raises(WrongSecret, match=r"\\x1b\[31m") as refused:
            accept().receive(dial().start()[:HELLO_SIZE] + b"\3" + len(reason).to_bytes(2, "big") + reason)
        assert str(refused.value).isprintable()

    @pytest.mark.parametrize("change", [{"name": "n" * 256}, {"role": "admin"}, {"python": (3, 300)}, {"pid": -1}])
    def test_an_identity_that_can_not_be_sent_is_a_mistake_at_once(self, change: dict[str, object]) -> None:
        with pytest.raises(ValueError, match=f"its {next(iter(change))} is wrong"):
            dial(me=replace(CONTROLLER, **change))  # type: ignore[arg-type]

    @pytest.mark.parametrize("change", [{"session": b"short"}, {"resume": lambda peer, session: 0}])
    def test_a_dialer_names_a_whole_session_and_its_cursor(self, change: dict[str, object]) -> None:
        with pytest.raises(ValueError, match=r"session id has 16|as a number"):
            dial(**change)

    @deterministic
    @given(
        st.booleans(),
        st.sampled_from([0, 6, 10, HELLO_SIZE, HELLO_SIZE + PART, HELLO_SIZE + PART + 20, 10_000]),
        st.lists(st.binary(max_size=60) | st.binary(min_size=1, max_size=9).map(lambda b: b * 3000), max_size=6),
    )
    def test_arbitrary_bytes_after_any_good_beginning_only_ever_refuse(
        self, is_dialer: bool, good: int, chunks: list[bytes]
    ) -> None:
        side, other = (dial(), accept()) if is_dialer else (accept(), dial())
        beginning = other.receive(side.start()) if is_dialer else other.start()
        feed(side, [beginning[:good], *chunks])

    @deterministic
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary() | st.floats(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
        st.sampled_from([*Identity.__slots__, "session", "resume"]),
    )
    def test_arbitrary_msgpack_in_any_field_only_ever_refuses(self, value: object, field: str) -> None:
        info = msgpack.packb({**msgpack.unpackb(dial().start()[HELLO_SIZE + PART :]), field: value})
        if len(info) <= INFO_LIMIT:
            feed(accept(), [with_info(info)])

    @deterministic
    @given(st.binary(min_size=1, max_size=300))
    def test_arbitrary_info_bytes_only_ever_refuse(self, info: bytes) -> None:
        feed(accept(), [with_info(info)])


def feed(side: Handshake, chunks: list[bytes]) -> None:
    try:
        for chunk in chunks:
            side.receive(chunk)
            if not side.done:
                assert len(side._buffer) + len(side.leftover) <= BUFFER_LIMIT
    except HandshakeError as error:
        assert len(side._buffer) <= BUFFER_LIMIT and len(error.reply) <= BUFFER_LIMIT
        assert side.peer is None and side.keys is None
