"""Monarch's configuration, transports and names of things."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator

import pytest

from roost.actors.policy import policy, set_policy
from roost.compat.monarch import config, transport
from roost.compat.monarch.durations import normal, seconds
from roost.compat.monarch.ids import ProcId, Uid
from roost.compat.monarch.keys import DEFAULTS, Encoding
from roost.compat.monarch.transport import BindSpec, ChannelTransport, enable_transport


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    manners, carried = policy(), os.environ.pop(config.CARRIED, None)
    yield
    config.clear_runtime_config()
    os.environ.pop(config.CARRIED, None)
    if carried is not None:
        os.environ[config.CARRIED] = carried
    set_policy(manners)
    transport._enabled.clear()


def test_all_84_keys_can_be_set_to_their_defaults_and_read_back() -> None:
    assert len(DEFAULTS) == 84
    config.configure(**DEFAULTS)
    assert config.get_global_config() == config.get_runtime_config() == DEFAULTS


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("90s", "1m 30s"), ("120s", "2m"), ("1500ms", "1s 500ms"), ("1day", "1day"), ("0s", "0s"), ("36h", "1day 12h"),
        ("1us", "1us"), ("100ns", "100ns"), ("500 ms", "500ms"), ("1.5s", "1s 500ms"), ("2min", "2m"), ("1hour", "1h"),
        ("1h 2m 3s 4ms", "1h 2m 3s 4ms"),
    ],
)  # fmt: skip
def test_durations_are_told_as_monarch_tells_them(text: str, told: str) -> None:
    assert normal(text) == told
    assert seconds(told) == seconds(text)
    config.configure(cleanup_timeout=text)
    assert config.get_global_config()["cleanup_timeout"] == told


@pytest.mark.parametrize("text", ["", "banana", "3", "s", "3 parsecs", "1s2", "-1s"])
def test_what_is_no_duration_is_a_type_error(text: str) -> None:
    with pytest.raises(TypeError, match="Invalid duration format"):
        config.configure(cleanup_timeout=text)


def test_unknown_keys_and_wrong_types_are_told() -> None:
    with pytest.raises(ValueError, match="invalid configuration key: `nonsense`"):
        config.configure(nonsense=1)
    wrong = {
        "enable_log_forwarding": ("x", 1), "cleanup_timeout": (3,), "codec_max_frame_length": ("1", -1, 1.5),
        "default_transport": (3,), "default_encoding": ("json",), "file_log_level": (None, 3),
        "message_latency_sampling_rate": ("1",), "rdma_max_nics_per_buffer": ("2",),
    }  # fmt: skip
    for key, values in wrong.items():
        for value in values:
            with pytest.raises(TypeError):
                config.configure(**{key: value})
    with pytest.raises(ValueError, match="invalid str for BindSpec"):
        config.configure(default_transport="pigeon")
    with pytest.raises(ValueError, match="nonsense"):
        config.configure(cleanup_timeout="8s", nonsense=1)
    assert config.get_runtime_config() == DEFAULTS, "a call that is refused sets nothing"


def test_configured_sets_for_a_while() -> None:
    config.configure(tail_log_lines=3)
    with config.configured(cleanup_timeout="5s", tail_log_lines=4) as merged:
        assert (merged["cleanup_timeout"], merged["tail_log_lines"], len(merged)) == ("5s", 4, 84)
        with pytest.raises(ZeroDivisionError), config.configured(cleanup_timeout="6s"):
            _ = 1 / 0
        assert config.get_global_config()["cleanup_timeout"] == "5s"
    assert config.get_runtime_config() == {**DEFAULTS, "tail_log_lines": 3}


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERACTOR_CLEANUP_TIMEOUT", "70s")
    monkeypatch.setenv("HYPERACTOR_ENABLE_LOG_FORWARDING", "true")
    config.configure(cleanup_timeout="9s")
    assert config.get_global_config()["cleanup_timeout"] == "1m 10s"
    assert config.get_global_config()["enable_log_forwarding"] is True
    assert config.get_runtime_config()["cleanup_timeout"] == "9s"


def test_what_is_configured_reaches_workers_by_the_environment() -> None:
    config.configure(
        cleanup_timeout="9s", default_encoding=Encoding.Json, default_transport="tcp", tokio_worker_threads=3
    )
    before = config.get_runtime_config()
    config._runtime.clear()
    config.take_over()
    assert config.get_runtime_config() == before
    config.clear_runtime_config()
    config.take_over()
    assert config.get_runtime_config() == DEFAULTS


def test_output_arrives_whether_or_not_log_forwarding_is_on() -> None:
    for value in (False, True):
        config.configure(enable_log_forwarding=value)
        assert policy().forward_output


def test_tests_are_run_under_each_configuration() -> None:
    seen = []

    @config.parametrize_config(cleanup_timeout={"1s"}, tail_log_lines={1, 2})
    def crossed(extra: int) -> None:
        now = config.get_global_config()
        seen.append((extra, now["cleanup_timeout"], now["tail_log_lines"]))

    @config.parametrize_config_pointwise(cleanup_timeout=["1s", "2s"], tail_log_lines=[1, 2])
    async def paired() -> None:
        now = config.get_global_config()
        seen.append((0, now["cleanup_timeout"], now["tail_log_lines"]))

    assert list(inspect.signature(crossed).parameters) == ["extra", "monarch_config"]
    for case in crossed.pytestmark[0].args[1]:  # type: ignore[attr-defined]
        crossed(7, monarch_config=case)
    for case in paired.pytestmark[0].args[1]:  # type: ignore[attr-defined]
        asyncio.run(paired(monarch_config=case))
    assert sorted(seen[:2]) == [(7, "1s", 1), (7, "1s", 2)] and seen[2:] == [(0, "1s", 1), (0, "2s", 2)]
    with pytest.raises(ValueError, match="as many values"):
        config.parametrize_config_pointwise(cleanup_timeout=["1s"], tail_log_lines=[1, 2])


def test_one_transport_is_enabled_before_anything_else() -> None:
    with pytest.raises(TypeError, match="expected ChannelTransport enum"):
        enable_transport(3)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="not offered"):
        enable_transport(ChannelTransport.Quic)
    enable_transport("ipc")
    enable_transport(ChannelTransport.Unix)
    with pytest.raises(RuntimeError, match="Only one transport type may be enabled at one time"):
        enable_transport("tcp")


def test_bind_specs_are_told_as_monarch_tells_them() -> None:
    assert [str(BindSpec(each)) for each in (ChannelTransport.Unix, "tcp", "tls", "tcp://127.0.0.1:99")] == [
        "unix", "tcp(Hostname)", "tls", "tcp:127.0.0.1:99",
    ]  # fmt: skip
    assert (
        repr(ChannelTransport.Unix) == "ChannelTransport.Unix" and ChannelTransport.Unix.get() is ChannelTransport.Unix
    )
    assert [transport.name for transport in ChannelTransport] == [
        "TcpWithLocalhost", "TcpWithHostname", "MetaTlsWithHostname", "MetaTlsWithIpV6", "Tls", "Quic",
        "MetaQuicWithHostname", "MetaQuicWithIpV6", "Local", "Unix",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "label", "value"),
    [("abc", "abc", None), ("abc<7>", "abc", 6), ("<24>", None, 61), ("a_b<cqGamYxEVG1>", "a_b", 4922253279259407076)],
)
def test_uids_are_written_as_monarch_writes_them(text: str, label: str | None, value: int | None) -> None:
    uid = Uid.from_string(text)
    assert (uid.label, uid.instance_value, str(uid)) == (label, value, text)
    assert uid.is_instance is (value is not None) and uid.is_singleton is (value is None)
    assert uid == Uid.from_string(text) and hash(uid) == hash(Uid.from_string(text))
    assert ProcId.from_string(text).uid == uid and str(ProcId(uid)) == text and ProcId(uid).label == label


def test_what_is_no_uid_is_told() -> None:
    for text in ("", "_", "x y", "Upper", "abc<", "abc<0>", "<>"):
        with pytest.raises(ValueError, match="invalid uid"):
            Uid.from_string(text)
    assert Uid.anonymous() != Uid.anonymous() and Uid.instance("abc").label == "abc"
