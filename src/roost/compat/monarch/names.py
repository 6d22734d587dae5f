"""Monarch's modules and names, and where each lives here.

`MODULES` says which names a module has, `PLACES` where a name lives, as "module:attribute"; one that has none there is
in `ABSENT`, with what to use instead. Nothing is imported before it is asked for.
"""

from __future__ import annotations

TOP = "monarch"
_HERE = "roost.compat.monarch"


def _at(home: str, names: str) -> dict[str, str]:
    return {name: f"{home}:{name}" for name in names.split()}


PLACES: dict[str, str] = {
    **_at(
        "roost.actors",
        "Accumulator Actor ActorError Channel Context Future MeshFailure Port PortReceiver SupervisionError "
        "concurrent_endpoint context current_actor_name current_rank current_size endpoint returns_future send",
    ),
    **_at(
        "roost.mesh",
        "ActorMesh BootstrapCommand Extent HostMesh Point ProcMesh SPMDActor Shape ValueMesh as_endpoint "
        "default_bootstrap_cmd setup_torch_elastic_env setup_torch_elastic_env_async this_host this_proc",
    ),
    **_at("roost.mesh.shape", "MeshTrait NDSlice Region Slice"),
    **_at("roost.mesh", "get_or_spawn_controller"),
    **_at(f"{_HERE}.transport", "BindSpec ChannelTransport enable_transport"),
    **_at(f"{_HERE}.ids", "ProcId Uid"),
    **_at(
        f"{_HERE}.workers",
        "attach attach_to_workers run_worker_loop_forever run_worker_loop_until_shutdown start_worker_loop_forever",
    ),
    **_at(f"{_HERE}.telemetry", "get_meter span traced"),
    **_at(f"{_HERE}.keys", "Encoding"),
    **_at(
        f"{_HERE}.config",
        "clear_runtime_config configure configured get_global_config get_runtime_config parametrize_config "
        "parametrize_config_pointwise",
    ),
    **_at(
        f"{_HERE}.rdma",
        "RDMAAction RDMABuffer RDMAReadTransferWarning RDMATcpFallbackWarning RDMAWriteTransferWarning "
        "get_rdma_backend is_ibverbs_available is_rdma_available pt_cuda_allocator_compatibility",
    ),
    **_at(
        f"{_HERE}.jobs",
        "DEFAULT_JOB_PATH JobState JobTrait LocalJob MeshAdminConfig ProcessJob SERVICE_PROC_IDS_ENV "
        "SERVICE_PROC_RANK_ENV TelemetryConfig hosts_from_config job_load job_loads load_current_job set_current_job",
    ),
    **_at(f"{_HERE}.client", "shutdown_context"),
    **_at(f"{_HERE}.mock", "patch_actor"),
    **_at(f"{_HERE}.network", "AddrType get_ipaddr get_sockaddr"),
    **_at(f"{_HERE}.timeouts", "ThreadTimeout ThreadTimeoutError"),
    "ActorEndpoint": "roost.mesh.endpoints:MeshEndpoint",
    "ActorFuture": "roost.actors:Future",
    "Endpoint": "roost.mesh.endpoints:MeshEndpoint",
    "EndpointProperty": "roost.actors.endpoint:EndpointDefinition",
    "Instance": "roost.actors.context:Instance",
    "RankedPortReceiver": "roost.actors:PortReceiver",
    "config": "monarch._src.actor.config",
    "prefix_python_logs_with_actor": f"{_HERE}.config:prefix_python_logs_with_actor",
    "unhandled_fault_hook": "roost.actors:unhandled_fault_hook",
}

_JOBS = "it arrives with Roost's jobs for clusters; until then ProcessJob gives hosts on this machine"
_TENSORS = (
    "Monarch's tensor engine is not offered: put the work into an endpoint, use torch.distributed inside of actors "
    "and roost.rdma between them"
)
_MOUNTS = "mounts are not offered: put the files on a file system that the hosts share"

ABSENT: dict[str, str] = {
    "": "Roost has nothing of this name yet",
    "monarch": _TENSORS,
    "debug_controller": "there is no debug server; `roost stacks` shows where every actor stands",
    "patch_tensor_engine": _TENSORS,
    "monarch.tools.config": "workspaces are not offered: workers import what the controller can import",
    "monarch.tools.mesh_spec": "torchx specifications are not offered: describe the hosts to a job of monarch.job",
    "monarch.job": _JOBS,
    "monarch.job.kubernetes": _JOBS,
    "monarch.job.spmd": _JOBS,
    "monarch._src.job.job": _JOBS,
    "monarch.remotemount": _MOUNTS,
    "monarch.gather_mount": _MOUNTS,
    "monarch.distributed_telemetry": "it arrives with Roost's telemetry; `roost ps` and `roost logs` tell of a job",
}

ALL: dict[str, tuple[str, ...]] = {
    "monarch.actor": (
        "Accumulator", "Actor", "ActorError", "current_actor_name", "as_endpoint", "current_rank", "current_size",
        "concurrent_endpoint", "endpoint", "Future", "returns_future", "Point", "ProcMesh", "ProcId", "Channel", "send",
        "shutdown_context", "ValueMesh", "debug_controller", "get_or_spawn_controller", "this_host", "this_proc",
        "default_bootstrap_cmd", "HostMesh", "context", "Port", "PortReceiver", "Endpoint", "Extent",
        "run_worker_loop_forever", "run_worker_loop_until_shutdown", "start_worker_loop_forever", "attach_to_workers",
        "attach", "enable_transport", "Context", "ChannelTransport", "unhandled_fault_hook", "MeshFailure", "config",
        "get_meter", "span", "traced", "Uid",
    ),
    "monarch.rdma": (
        "get_rdma_backend", "is_ibverbs_available", "is_rdma_available", "RDMABuffer", "RDMAAction",
        "RDMAReadTransferWarning", "RDMATcpFallbackWarning", "RDMAWriteTransferWarning",
    ),
    "monarch.experimental": (),
}  # fmt: skip
"""`__all__` where it is not simply all names of the module, in alphabetic order."""

_CONFIG = (
    "clear_runtime_config configure configured Encoding get_global_config get_runtime_config parametrize_config "
    "parametrize_config_pointwise"
)
_JOB = (
    "DEFAULT_JOB_PATH deserialize_service_proc_ids exec_command hosts_from_config JobTrait job_load job_loads JobState "
    "load_current_job LocalJob MeshAdminConfig new_service_proc_id PortForwarder ProcessJob "
    "ranked_service_proc_id_from_env serialize_service_proc_ids service_proc_addr service_proc_addrs "
    "SERVICE_PROC_IDS_ENV SERVICE_PROC_RANK_ENV set_current_job shell SlurmJob TelemetryConfig"
)
_RDMA = " ".join(ALL["monarch.rdma"]) + " pt_cuda_allocator_compatibility"
_SPMD = "SPMDActor setup_torch_elastic_env setup_torch_elastic_env_async"
_LOOPS = "attach_to_workers run_worker_loop_forever run_worker_loop_until_shutdown start_worker_loop_forever"
_SRC = "monarch._src"
_NATIVE = "monarch._rust_bindings.monarch_hyperactor"

_MODULES: dict[str, str] = {
    "monarch": (
        "coalescing clear_runtime_config configure configured get_global_config get_runtime_config get_active_mesh "
        "no_mesh remote RemoteProcessGroup function_resolvers Extent Future Shape Selection NDSlice OpaqueRef "
        "get_active_stream Stream Tensor reduce reduce_ to_mesh slice_mesh call_on_shard_and_fetch fetch_shard inspect "
        "show grad_function grad_generator mast_reserve set_meta Simulator world_mesh timer ActorFuture builtins"
    ),
    "monarch.actor": " ".join(ALL["monarch.actor"]),
    "monarch.config": _CONFIG,
    "monarch.distributed_telemetry": "QueryEngine profile",
    "monarch.experimental": "ThreadTimeout ThreadTimeoutError",
    "monarch.experimental.thread_timeout": "ThreadTimeout ThreadTimeoutError",
    "monarch.gather_mount": "GatherMount gather_mount",
    "monarch.job": _JOB,
    "monarch.job.kubernetes": "ImageSpec KubeConfig KubernetesJob",
    "monarch.job.spmd": "SPMDJob StoreJob serve",
    "monarch.proc_mesh": "ProcMesh",
    "monarch.rdma": _RDMA,
    "monarch.remotemount": "MountHandler remotemount",
    "monarch.spmd": _SPMD,
    "monarch.tools": "",
    "monarch.tools.config": "CondaEnvironment Config Workspace",
    "monarch.tools.mesh_spec": "MeshSpec ServerSpec mesh_spec_from_str",
    "monarch.tools.network": "AddrType get_ipaddr get_sockaddr",
    _SRC: "",
    f"{_SRC}.actor": "",
    f"{_SRC}.actor.actor_mesh": (
        "Accumulator Actor ActorEndpoint ActorError ActorMesh Channel ChannelTransport Context "
        "Endpoint EndpointProperty Future Instance MeshFailure MeshTrait NDSlice Point Port PortReceiver "
        "RankedPortReceiver Shape ValueMesh as_endpoint attach context current_actor_name current_rank current_size "
        "enable_transport returns_future send shutdown_context"
    ),
    f"{_SRC}.actor.bootstrap": f"{_LOOPS} Extent Future HostMesh",
    f"{_SRC}.actor.concurrent": "concurrent_endpoint",
    f"{_SRC}.actor.config": "prefix_python_logs_with_actor",
    f"{_SRC}.actor.debugger": "",
    f"{_SRC}.actor.debugger.debug_controller": "debug_controller",
    f"{_SRC}.actor.endpoint": "Endpoint EndpointProperty Extent Future endpoint",
    f"{_SRC}.actor.future": "Future",
    f"{_SRC}.actor.host_mesh": (
        "BootstrapCommand Extent Future HostMesh MeshTrait NDSlice Point ProcMesh Region Shape context "
        "default_bootstrap_cmd this_host this_proc"
    ),
    f"{_SRC}.actor.mock": "patch_actor patch_tensor_engine",
    f"{_SRC}.actor.proc_mesh": (
        "Actor ActorMesh Future MeshFailure MeshTrait ProcMesh Region Shape Slice context endpoint "
        "get_or_spawn_controller"
    ),
    f"{_SRC}.actor.returns_future": "returns_future",
    f"{_SRC}.actor.shape": "Extent MeshTrait NDSlice Shape Slice",
    f"{_SRC}.actor.supervision": "MeshFailure unhandled_fault_hook",
    f"{_SRC}.actor.telemetry": "get_meter span traced",
    f"{_SRC}.job": "",
    f"{_SRC}.job.job": f"{_JOB} BatchJob LoginJob SSHJob",
    f"{_SRC}.job.job_state": "JobState",
    f"{_SRC}.job.process": "JobState JobTrait ProcessJob",
    f"{_SRC}.job.slurm": "SlurmJob",
    f"{_SRC}.rdma": "",
    f"{_SRC}.rdma.rdma": _RDMA,
    f"{_SRC}.spmd": _SPMD,
    f"{_SRC}.spmd.actor": "SPMDActor",
    "monarch._rust_bindings": "",
    _NATIVE: "",
    f"{_NATIVE}.actor": "Port",
    f"{_NATIVE}.actor_mesh": "ActorMesh",
    f"{_NATIVE}.channel": "BindSpec ChannelTransport",
    f"{_NATIVE}.config": _CONFIG,
    f"{_NATIVE}.context": "Context Instance",
    f"{_NATIVE}.endpoint": "ActorEndpoint",
    f"{_NATIVE}.host_mesh": "BootstrapCommand HostMesh",
    f"{_NATIVE}.mailbox": "Port PortReceiver",
    f"{_NATIVE}.proc": "ProcId Uid",
    f"{_NATIVE}.proc_mesh": "ProcMesh",
    f"{_NATIVE}.shape": "Extent Point Region Shape Slice",
    f"{_NATIVE}.supervision": "MeshFailure SupervisionError",
    f"{_NATIVE}.value_mesh": "ValueMesh",
}

MODULES: dict[str, frozenset[str]] = {module: frozenset(names.split()) for module, names in _MODULES.items()}
