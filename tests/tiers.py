"""Which tier each test belongs to: the one table of it, by folder and file.

`conftest.py` gives each test its tier as a marker, `tests.run` and the Makefile run them by tier.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent

TIERS = {
    "unit": "one part in the process of the tests: no socket, no real time; may run beside anything",
    "cluster": "real sockets, processes and real time; never beside other tests that take processor time",
    "codegen": "emulator, TVM, the zoo, compiled cores, long simulations: computes much, knows no real time",
    "patient": "pages in a browser, and processes that compile: waits for states, however long it takes",
    "lab": "experiments on real time, benchmarks and the check of a GPU: that the commands work",
}

TIER_OF = {
    "cli": "cluster",
    "cli/balancing": "unit",
    "cli/configuration": "unit",
    "cli/configuration/test_config": "cluster",
    "cli/graph_demo/test_models": "unit",
    "cli/test_demonstration": "unit",
    "cli/documents/test_site": "codegen",
    "cli/launcher/test_op_libraries": "patient",
    "cli/launcher/test_padded_models": "patient",
    "cli/launcher/test_repository": "patient",
    "cli/launcher/test_served_models": "patient",
    "cli/launcher/test_served_zoo": "patient",
    "cli/views": "unit",
    "cli/verbs/test_auto_on_gpu": "codegen",
    "cli/verbs/test_compile_and_zoo": "codegen",
    "cli/verbs/test_models_repository": "patient",
    "cli/verbs/test_plan": "codegen",
    "cli/verbs/test_simulate": "codegen",
    "client": "unit",
    "client/test_client": "cluster",
    "client/test_closing": "cluster",
    "client/test_deadlines": "cluster",
    "client/test_failover": "cluster",
    "client/test_faults": "cluster",
    "client/test_forks": "cluster",
    "client/test_repository": "cluster",
    "client/test_shared_deadlines": "cluster",
    "cluster": "unit",
    "cluster/test_apply": "codegen",
    "cluster/test_plans": "codegen",
    "cluster/test_readiness": "codegen",
    "cluster/test_residency": "codegen",
    "cluster/test_restore": "codegen",
    "compiler": "unit",
    "compiler/conversion/test_estimators": "codegen",
    "compiler/python_models/test_compiling": "codegen",
    "compiler/test_contents": "codegen",
    "compiler/test_padded": "codegen",
    "compiler/test_padding": "codegen",
    "compiler/test_python_zoo": "codegen",
    "compiler/test_row_axes": "codegen",
    "compiler/test_symbols": "codegen",
    "compiler/test_unverified": "codegen",
    "compiler/test_varying": "codegen",
    "compiler/test_zoo": "codegen",
    "compiler/tvm": "codegen",
    "console": "unit",
    "console/queries/test_explaining": "codegen",
    "console/view/test_agreement": "codegen",
    "console/page": "patient",
    "console/test_live": "cluster",
    "console/web": "cluster",
    "controller": "cluster",
    "controller/test_clock": "unit",
    "controller/test_sessions": "unit",
    "controller/test_shards": "unit",
    "controller/test_moves": "unit",
    "controller/test_shell": "unit",
    "deploy": "codegen",
    "emulator": "codegen",
    "examples": "cluster",
    "experiments": "lab",
    "experiments/figures": "codegen",
    "experiments/figures/test_live_figure": "lab",
    "experiments/test_bench_compiling": "codegen",
    "experiments/test_kernel_resources": "codegen",
    "experiments/test_repository_many": "patient",
    "experiments/test_simulated_shards": "codegen",
    "experiments/test_baseline_agreement": "codegen",
    "experiments/test_bench_instructions": "codegen",
    "experiments/test_bench_lengths": "unit",
    "experiments/test_bench_stock": "unit",
    "experiments/test_event_path": "unit",
    "experiments/test_graph_ablation": "unit",
    "experiments/gpu_check/test_bundle": "codegen",
    "experiments/gpu_check/test_rehearsal": "codegen",
    "experiments/chaos/test_faults": "unit",
    "experiments/mixed": "unit",
    "experiments/mixed/test_run": "lab",
    "experiments/test_policies": "codegen",
    "experiments/test_policy_agreement": "codegen",
    "experiments/test_policy_constants": "codegen",
    "experiments/ribbon": "codegen",
    "experiments/test_bench_embeddings": "patient",
    "experiments/test_onnx_suites": "patient",
    "experiments/test_scheduler_ways": "codegen",
    "experiments/test_pipelines": "codegen",
    "experiments/test_request_path": "patient",
    "experiments/wild": "unit",
    "experiments/wild/test_served": "patient",
    "faults": "cluster",
    "faults/test_damaged_models": "patient",
    "faults/test_python_models": "patient",
    "gateway": "cluster",
    "gateway/http/test_docs": "patient",
    "gateway/core": "unit",
    "gateway/oip": "unit",
    "gateway/graphs": "unit",
    "gateway/http/test_watch": "unit",
    "gateway/test_delays": "unit",
    "gateway/test_services_log_settings": "unit",
    "gateway/test_catalog": "unit",
    "gateway/test_descriptors": "unit",
    "gateway/test_regions": "unit",
    "gateway/test_config": "unit",
    "gateway/test_statistics": "unit",
    "gateway/test_tracing": "unit",
    "hosts": "cluster",
    "messages": "unit",
    "mutants": "unit",
    "planner": "unit",
    "planner/test_informed": "codegen",
    "planner/test_graph_queues": "codegen",
    "planner/test_simulated": "codegen",
    "native": "codegen",
    "repository": "unit",
    "repository/test_compiling": "patient",
    "repository/test_serving": "cluster",
    "repository/test_sequence_compiling": "cluster",
    "repository/test_control": "cluster",
    "repository/test_server": "patient",
    "scheduler": "unit",
    "scheduler/test_load_room": "codegen",
    "scheduler/test_operated_policies": "codegen",
    "scheduler/test_overload": "codegen",
    "scheduler/test_scaling": "codegen",
    "scheduler/test_wide": "codegen",
    "scheduler/policies/baselines/test_first_free": "codegen",
    "scheduler/policies/baselines/test_clipper": "codegen",
    "scheduler/policies/baselines/test_squishy": "codegen",
    "scheduler/policies/mainspring/test_policy": "codegen",
    "scheduler/policies/mainspring/test_heterogeneous": "codegen",
    "scheduler/policies/mainspring/test_loading_victims": "codegen",
    "scheduler/policies/mainspring/test_weights": "codegen",
    "scheduler/policies/test_baselines": "codegen",
    "scheduler/policies/test_ready_queue": "codegen",
    "scheduler/policies/test_not_lost": "codegen",
    "scheduler/policies/test_options": "codegen",
    "selection": "unit",
    "selection/linear/test_weights": "codegen",
    "simulator": "unit",
    "simulator/bound": "codegen",
    "simulator/test_any_cluster": "codegen",
    "simulator/test_best_effort": "codegen",
    "simulator/test_gateway": "codegen",
    "simulator/test_graphs": "codegen",
    "simulator/test_openings": "codegen",
    "simulator/test_outliers": "codegen",
    "simulator/test_planned_and_deferred": "codegen",
    "simulator/test_queries": "codegen",
    "simulator/test_redecide": "codegen",
    "simulator/test_rejoining": "codegen",
    "simulator/test_refusals": "codegen",
    "simulator/test_scenarios": "codegen",
    "simulator/test_sweep_interrupted": "codegen",
    "simulator/test_unlike": "codegen",
    "telemetry": "unit",
    "telemetry/test_log_stats": "codegen",
    "telemetry/test_plots": "codegen",
    "test_architecture": "unit",
    "test_files_that_know_each_other": "unit",
    "test_words": "unit",
    "test_extras": "unit",
    "test_fuzz": "codegen",
    "test_host": "unit",
    "test_house": "unit",
    "test_locks": "unit",
    "test_makefile": "unit",
    "test_ray": "cluster",
    "test_run": "codegen",
    "test_skips": "unit",
    "test_tiers": "unit",
    "traces": "unit",
    "traces/test_replayer": "cluster",
    "transport": "cluster",
    "transport/test_link": "unit",
    "worker": "cluster",
    "worker/core": "unit",
    "worker/test_limits": "unit",
    "worker/test_batches": "unit",
    "worker/engines/test_zoo": "codegen",
    "worker/engines/cuda": "unit",
    "worker/engines/cuda/test_engine": "codegen",
    "worker/engines/cuda/test_opening": "codegen",
    "worker/engines/cuda/test_runs": "codegen",
    "worker/engines/cuda/test_generated_kernels": "codegen",
    "worker/engines/cuda/test_served": "cluster",
    "worker/engines/test_buckets": "patient",
}
"""Tier of what begins so below `tests/`; the longest beginning decides."""

HEART = (
    "cli/configuration/test_config",
    "cli/launcher/test_local",
    "client/test_client",
    "controller/test_server",
    "gateway/grpc/test_live",
    "gateway/http/test_server",
    "gateway/http/test_tritonclient",
    "gateway/test_end_to_end",
    "transport/test_conversations",
    "worker/test_server",
)
"""What `make test` runs of the tier *cluster*: from request to reply by each way in, and a worker's death."""

COMPILED = (
    *("cluster", "console", "controller", "gateway", "messages", "scheduler"),
    *("simulator", "telemetry", "traces", "transport", "worker"),
)
"""Where the code under test is compiled, or runs what is: its unit tests run in both forms."""


def name_of(path: Path) -> str:
    """Return what the tables call a file or folder below `tests/`."""
    return path.relative_to(TESTS).with_suffix("").as_posix()


def tier_of(name: str) -> str | None:
    """Return the tier of a file below `tests/`; None if the table has none."""
    found = max((entry for entry in TIER_OF if covers(entry, name)), key=len, default=None)
    return None if found is None else TIER_OF[found]


def is_heart(name: str) -> bool:
    """Say whether `make test` runs this file of the tier *cluster*."""
    return any(covers(entry, name) for entry in HEART)


def is_compiled(name: str) -> bool:
    """Say whether a file's unit tests run with compiled cores, too."""
    # A town has a hub and links of its own, and compiled classes take none but theirs.
    python_alone = covers("simulator/town", name)
    return tier_of(name) == "unit" and not python_alone and any(covers(entry, name) for entry in COMPILED)


def covers(entry: str, name: str) -> bool:
    """Say whether an entry is of this file: its folder, its name, or a name before an underscore in it."""
    return name == entry or name.startswith((f"{entry}/", f"{entry}_"))
