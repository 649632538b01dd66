"""A GPU's resources in kernels: `python -m mainspring.experiments.kernel_resources MODEL --store S`.

Assembles the stored source of a model of the engine ``tvm`` by NVRTC, which needs no GPU, and prints the
registers, the shared memory, the stack and the spills of each kernel. Fails if a kernel spills.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mainspring import extras
from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.nvrtc import NvrtcFailed, NvrtcMissing, Resources, kernel_resources
from mainspring.compiler.artifact.plan import SOURCE, kernels_path, read_plans
from mainspring.compiler.artifact.store import Store


def measure(
    model: Annotated[str, typer.Argument(help="A model that was compiled with --engine tvm --device cuda.")],
    store: Annotated[Path, typer.Option(help="Folder of compiled models.")] = Path("store"),
    arch: Annotated[str, typer.Option(help="Assemble for this architecture; default: the model's.")] = "",
) -> None:
    """Print what each kernel of a model takes of a GPU, the most registers first."""
    try:
        opened = Store(store)
        manifest = opened.manifest(model)
        plans = read_plans(opened, manifest)
        source = kernels_path(opened, manifest, plans, SOURCE)
        if source is None:
            sys.exit(f"{model} has no source of kernels: compile it with --engine tvm --device cuda")
        found = kernel_resources(source.read_bytes(), arch or plans.arch)
    except NvrtcMissing as error:
        sys.exit(f"{error}: {extras.command('nvrtc')}")
    except (StoreError, NvrtcFailed) as error:
        sys.exit(str(error))
    print(table(found))
    if any(each.spilled_bytes for each in found.values()):
        sys.exit("kernels that spill wait for memory in their inner loops: smaller tiles spill less")


def table(found: dict[str, Resources]) -> str:
    """Return a line for each kernel, the most registers first."""
    width = max(map(len, found), default=0)
    lines = [f"{'kernel':<{width}} registers  shared B  stack B  spilled B"]
    for name, each in sorted(found.items(), key=lambda item: (-item[1].registers, item[0])):
        lines.append(
            f"{name:<{width}} {each.registers:>9} {each.shared_bytes:>9} {each.stack_bytes:>8} "
            f"{each.spilled_bytes:>10}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(measure)
