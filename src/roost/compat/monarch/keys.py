"""Monarch 0.7.0's configuration: its 84 keys, their kinds and defaults.

All are accepted and checked, so that programs which set them run; `config.ACTS` says which mean something to Roost.
"""

from __future__ import annotations

import enum
import os
from typing import Any

from .durations import normal
from .transport import BindSpec, ChannelTransport


class Encoding(enum.Enum):
    """How Monarch writes messages; means nothing here."""

    Bincode = "bincode"
    Json = "json"
    Multipart = "multipart"

    def __repr__(self) -> str:
        return f"Encoding.{self.name}"

    __str__ = __repr__


_DURATIONS = """
actor_spawn_max_idle=30s channel_net_rx_buffer_full_check_interval=5s channel_reconnect_timeout=1m
channel_tcp_keepalive_idle=1m cleanup_timeout=3s forwarder_flush_timeout=5s get_actor_state_max_idle=30s
get_proc_state_max_idle=1m host_spawn_ready_timeout=30s mesh_admin_config_dump_bridge_timeout=5s
mesh_admin_pyspy_bridge_timeout=13s mesh_admin_pyspy_client_timeout=20s mesh_admin_pyspy_max_profile_duration=5m
mesh_admin_pyspy_timeout=10s mesh_admin_query_child_timeout=100ms mesh_admin_resolve_actor_timeout=200ms
mesh_admin_single_host_timeout=3s mesh_admin_tree_timeout=10s mesh_attach_config_timeout=1m mesh_orphan_timeout=1m
mesh_proc_spawn_max_idle=30s mesh_terminate_timeout=10s message_ack_time_interval=500ms message_delivery_timeout=30s
otel_metric_export_interval=1s pending_actor_delivery_timeout=30s proc_stop_max_idle=30s process_exit_timeout=10s
process_memory_metric_interval=5m rdma_qp_init_timeout=30s server_heartbeat_interval=1s split_max_buffer_age=50ms
stop_actor_timeout=10s stop_grace_period=10s supervision_watchdog_timeout=2m
"""
_COUNTS = """
codec_max_frame_length=10737418240 max_cast_dimension_size=16 max_cast_fanout=16 mesh_admin_max_concurrent_resolves=2
mesh_terminate_concurrency=16 message_ack_every_n_messages=1000 message_ttl_default=64 rdma_max_chunk_size_mb=64
rdma_min_stripe_size_kb=512 rdma_qps_per_cq=64 rdma_qps_per_peer=4 rdma_runtime_worker_threads=4
rdma_tcp_fallback_parallelism=1 read_log_buffer=100 sequencer_max_locked_keys=128 small_write_threshold=256
split_max_buffer_size=5 tail_log_lines=0 terminated_snapshot_retention=100
"""
_ON = """
enable_dest_actor_reordering_buffer enable_otel_metrics enable_otel_tracing enable_recorder_tracing
mesh_bootstrap_enable_pdeathsig prefix_with_rank rdma_allow_tcp_fallback rdma_cq_poller_per_device
"""
_OFF = """
enable_file_capture enable_log_forwarding enable_sqlite_tracing enable_unawaited_python_task_traceback force_file_log
rdma_disable_ibverbs rdma_host_odp scuba_log_enter_exit use_direct_spawn
"""
_TEXTS = """
channel_tcp_congestion= file_log_level= mesh_admin_addr=[::]:1729 monarch_log_suffix= proc_launcher_kind= pyspy_bin=
rdma_ibverbs_target= rdma_peer_device_affinity=
"""


def _pairs(table: str) -> list[tuple[str, str]]:
    return [(key, value) for key, _, value in (entry.partition("=") for entry in table.split())]


DURATIONS = frozenset(key for key, _ in _pairs(_DURATIONS))
DEFAULTS: dict[str, Any] = {
    **dict(_pairs(_DURATIONS)),
    **{key: int(value) for key, value in _pairs(_COUNTS)},
    **dict.fromkeys(_ON.split(), True),
    **dict.fromkeys(_OFF.split(), False),
    **dict(_pairs(_TEXTS)),
    "default_encoding": Encoding.Multipart,
    "default_transport": BindSpec(ChannelTransport.Unix),
    "message_latency_sampling_rate": 0.01,
    "rdma_max_nics_per_buffer": None,
    "tokio_worker_threads": None,
}
"""Every key and its default."""


def checked(key: str, value: Any) -> Any:
    """The value as the configuration keeps it.

    ValueError for a key that there is none of, TypeError for a value of the wrong kind or a duration that is none.

    >>> checked("cleanup_timeout", "90s"), checked("tail_log_lines", 3)
    ('1m 30s', 3)
    """
    if key not in DEFAULTS:
        raise ValueError(f"invalid configuration key: `{key}`")
    default = DEFAULTS[key]
    if key == "default_transport":
        return BindSpec(value)
    if key in DURATIONS:
        if not isinstance(value, str):
            raise TypeError(f'{_wrong(key, value)}: a duration is a str, such as "500ms" or "1m 30s"')
        try:
            return normal(value)
        except ValueError as error:
            raise TypeError(f"{_wrong(key, value)}: {error}") from None
    if default is None and value is None:
        return None
    kind = int if default is None else type(default)
    if kind is float and isinstance(value, int | float):
        return float(value)
    if kind is int and isinstance(value, int):
        if value < 0:
            raise TypeError(f"{_wrong(key, value)}: it is at least 0")
        return int(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise TypeError(f"{_wrong(key, value)}: it is a {kind.__name__}, not a {type(value).__name__}")
    return value


def _wrong(key: str, value: Any) -> str:
    return f"invalid value `{value!r}` for configuration key `{key}`"


def from_text(key: str, text: str) -> Any:
    """The value that stands in an environment variable; errors as `checked`."""
    default = DEFAULTS[key]
    if isinstance(default, bool):
        if text.lower() not in ("0", "1", "false", "true"):
            raise TypeError(f"{_wrong(key, text)}: it is true or false")
        return text.lower() in ("1", "true")
    if key == "default_encoding":
        return Encoding(text.lower())
    if isinstance(default, float):
        return float(text)
    if default is None or isinstance(default, int):
        return checked(key, int(text))
    return checked(key, text)


def from_environment() -> dict[str, Any]:
    """What `HYPERACTOR_<KEY>` variables say."""
    found = {key: os.environ.get(f"HYPERACTOR_{key.upper()}") for key in DEFAULTS}
    return {key: from_text(key, text) for key, text in found.items() if text is not None}
