"""The lines of the house: by folder and kind, and by feature: ``python -m tests.house``.

``python -m tests.house --features`` prints the tables of `docs/house.md`.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("code", "docstrings", "comments", "imports", "blank")
LAB = "experiments"

FEATURES: dict[str, str] = {
    "GPUs: the CUDA engine, its drivers, NVRTC": (
        "worker/engines/cuda/** compiler/artifact/nvrtc.py compiler/artifact/launching.py "
        "compiler/artifact/plan.py cli/profiling/gpu_judge.py"
    ),
    "TVM's kernels for GPUs": "compiler/tvm/** worker/engines/tvm.py",
    "Models of open dimensions: sizes, padding": "compiler/sizes/**",
    "Proof that rows are independent": "compiler/independence/** compiler/rows/**",
    "scikit-learn, torch, old opsets, libraries of operators": (
        "compiler/conversion/** compiler/reading/operator_libraries.py "
        "compiler/reading/replaced_operators.py compiler/reading/stock.py "
        "compiler/reading/versions.py compiler/artifact/op_libraries.py"
    ),
    "Models that are not verified": "compiler/unverified.py",
    "Embeddings and reranking": (
        "gateway/http/openai.py gateway/http/texts.py gateway/graphs/texts.py gateway/graphs/lengths.py "
        "compiler/conversion/encoder.py cli/verbs/embeddings.py"
    ),
    "Python models": "compiler/python_models/** compiler/artifact/python_*.py worker/engines/python.py",
    "Profiler, zoo, tuning": (
        "compiler/choosing/** compiler/zoo/** cli/profiling/** cli/verbs/profile.py cli/verbs/zoo.py"
    ),
    "Compiler and store, the rest": "compiler/**",
    "gRPC": "gateway/grpc/**",
    "HTTP, Open Inference Protocol": "gateway/http/** gateway/oip/**",
    "Metrics, traces, access log of the gateway": (
        "gateway/metrics/** gateway/otlp.py gateway/tracing.py gateway/access_log.py "
        "gateway/statistics.py gateway/statistics_report.py"
    ),
    "Triton's shared memory regions": "gateway/regions.py",
    "Sequences with state": (
        "gateway/core/sequences.py messages/sequences.py messages/sequencing.py client/sequences.py"
    ),
    "Prediction cache, sharing of equal requests": "gateway/core/cache.py gateway/core/sharing.py",
    "Queries and graphs of models": (
        "gateway/graphs/** gateway/core/queries.py messages/graphs.py messages/queries.py "
        "scheduler/queries.py scheduler/query_plans.py scheduler/variants.py "
        "repository/ensemble.py "
        "cli/verbs/graphs.py cli/configuration/graphs.py"
    ),
    "Tenants, limits of tokens over all gateways": (
        "scheduler/tenants.py gateway/core/accounts.py gateway/token_limits.py controller/token_limits.py "
        "messages/limits.py"
    ),
    "Gateway, the rest: ZeroMQ, request table, memory": "gateway/**",
    "Controllers that stand by: memory, lease, epochs": (
        "controller/candidate.py controller/lease*.py controller/memory.py controller/followers.py "
        "controller/standby.py messages/following.py messages/leading.py transport/controllers.py"
    ),
    "Several gateways for one client": "client/failover.py cli/launcher/gateways.py",
    "Whole clusters by seed": "simulator/town/**",
    "Several controllers": "controller/shards.py messages/sharding.py cli/balancing/** cli/verbs/balance.py",
    "Ray": "cli/launcher/on_ray.py cli/launcher/ray_children.py mainspring/ray.py simulator/ray_address.py",
    "Workers that come and go": (
        "scheduler/scaling.py cluster/scaling.py cluster/provision.py controller/providers.py "
        "messages/scaling.py cli/launcher/provider.py cli/verbs/scale.py simulator/provider.py"
    ),
    "OPEN: preparing an executable beside serving": "scheduler/opening/**",
    "Policies of Clipper, Nexus, Symphony; EDF, FIFO": "scheduler/policies/baselines/**",
    "The policy mainspring": "scheduler/policies/mainspring/**",
    "Cluster state, scheduler, controller, the rest": "cluster/** scheduler/** controller/**",
    "Model repository in Triton's layout": "repository/** messages/repository.py client/repository.py",
    "Applications that learn": "selection/** messages/applications.py gateway/graphs/learnt.py",
    "Planner (Ribbon, InferLine)": "planner/** cli/pools.py cli/graph_plans.py cli/verbs/plan.py",
    "Console, page": (
        "console/web/** console/pages.py console/server.py console/config.py cli/verbs/console.py"
    ),
    "Console, terminal": "console/terminal/** cli/verbs/top.py",
    "Console, what page and terminal show": "console/**",
    "Simulator": "simulator/** cli/simulating.py cli/verbs/simulate.py",
    "Traces and replayer": "traces/** cli/verbs/replay.py cli/verbs/trace.py",
    "Plots, comparisons, Parquet, slices of event logs": (
        "telemetry/comparison*.py telemetry/plots.py telemetry/style.py telemetry/parquet.py "
        "telemetry/summary.py telemetry/report.py telemetry/runs.py telemetry/slices.py "
        "telemetry/log_stats.py cli/verbs/compare.py cli/verbs/log.py"
    ),
    "Event log": "telemetry/**",
    "Keys, tokens, TLS": (
        "transport/tokens.py transport/secure.py transport/keys.py transport/certificate.py "
        "transport/curve.py transport/handshake*.py transport/greeting.py cli/authority.py "
        "cli/exposure.py cli/verbs/keys.py cli/verbs/token.py messages/curve.py messages/roles.py"
    ),
    "Transport, the rest": "transport/**",
    "Worker: windows, pages, executors, the CPU engine": "worker/**",
    "Client": "client/**",
    "Messages": "messages/**",
    "Doctor": "cli/doctor/** cli/verbs/doctor.py",
    "Launcher": "cli/launcher/** cli/verbs/up.py cli/demonstration.py cli/verbs/demo.py cli/*_demo/**",
    "Command line, the rest": "cli/** mainspring/*.py",
}
"""What the product does, with its files as patterns. A file belongs to the first that fits."""


def kinds_of(text: str) -> Counter[str]:
    """Return how many lines of a file are of each of `KINDS`; and of one only."""
    lines = text.splitlines()
    kind = ["code"] * len(lines)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                _mark(kind, node, "docstrings")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            _mark(kind, node, "imports")
    for number, line in enumerate(lines):
        if not line.strip():
            kind[number] = "blank"
        elif line.lstrip().startswith("#") and kind[number] == "code":
            kind[number] = "comments"
    return Counter(kind)


def _mark(kind: list[str], node: ast.stmt, name: str) -> None:
    for number in range(node.lineno - 1, node.end_lineno or node.lineno):
        kind[number] = name


def files() -> dict[str, list[Path]]:
    """Return the Python files of each folder of the house."""
    links = [path for path in (ROOT / "mainspring").iterdir() if path.is_dir() and "__" not in path.name]
    found = {path.name: sorted(path.resolve().rglob("*.py")) for path in links}
    return {**found, "mainspring": sorted((ROOT / "mainspring").glob("*.py"))}


def product() -> list[Path]:
    """Return the product's files: all but those of the lab."""
    return [file for name, found in files().items() if name != LAB for file in found]


def lines(found: list[Path]) -> int:
    """Return how many lines files have together."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in found)


def features() -> dict[str, list[Path]]:
    """Return the product's files by feature; those of none are named by an empty one."""
    found: dict[str, list[Path]] = {name: [] for name in FEATURES}
    left = {file.relative_to(ROOT).as_posix(): file for file in product()}
    for name, patterns in FEATURES.items():
        for pattern in patterns.split():
            there = {file.relative_to(ROOT).as_posix() for file in _matching(pattern)}
            found[name] += [left.pop(path) for path in sorted(there & left.keys())]
    return {**found, **({"": [*left.values()]} if left else {})}


def _matching(pattern: str) -> Iterator[Path]:
    return ROOT.glob(f"{pattern}/*.py" if pattern.endswith("**") else pattern)


def feature_table() -> str:
    """Return the product's table of `docs/house.md`, the largest feature first."""
    sizes = {name: (len(found), lines(found)) for name, found in features().items()}
    ordered = sorted(sizes.items(), key=lambda each: -each[1][1])
    rows = [f"| {name} | {count} | {size:,} |" for name, (count, size) in ordered]
    count, size = (sum(each[number] for each in sizes.values()) for number in (0, 1))
    whole = f"| **all** | {count} | {size:,} |"
    return "\n".join(["| feature | files | lines |", "|---|---|---|", *rows, whole])


def lab_table() -> str:
    """Return the same of the lab, by folder."""
    found: dict[str, list[Path]] = {}
    for file in files()[LAB]:
        folder, _, rest = file.relative_to(ROOT / LAB).as_posix().partition("/")
        found.setdefault(f"`{LAB}/{folder}`" if rest else "single commands", []).append(file)
    ordered = sorted(found.items(), key=lambda each: -lines(each[1]))
    rows = [f"| {name} | {len(each)} | {lines(each):,} |" for name, each in ordered]
    return "\n".join(["| lab | files | lines |", "|---|---|---|", *rows])


def rows() -> Iterator[tuple[str, int, Counter[str]]]:
    """Yield each folder of the house with its number of files and its lines by kind, the largest first."""
    counted = [
        (name, len(found), sum((kinds_of(file.read_text(encoding="utf-8")) for file in found), Counter()))
        for name, found in files().items()
    ]
    yield from sorted(counted, key=lambda row: -row[2].total())


def main() -> None:
    """Print the lines by folder, with the product's sum, or those by feature."""
    if "--features" in sys.argv:
        print(feature_table(), lab_table(), sep="\n\n")
        return
    print(f"{'folder':12} {'files':>6} {'lines':>8} " + " ".join(f"{kind:>10}" for kind in KINDS))
    whole, count = Counter[str](), 0
    for name, number, kinds in rows():
        print(_row(name, number, kinds))
        if name != LAB:
            whole, count = whole + kinds, count + number
    print(_row("product", count, whole))


def _row(name: str, count: int, kinds: Counter[str]) -> str:
    return f"{name:12} {count:6} {kinds.total():8,} " + " ".join(f"{kinds[kind]:10,}" for kind in KINDS)


if __name__ == "__main__":
    main()
