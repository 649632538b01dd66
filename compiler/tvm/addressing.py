"""Generated CUDA kernels find their arrays through a table of addresses: `mainspring.compiler.artifact.plan`.

TVM generates kernels whose parameters are pointers. Each becomes a function, inlined into a kernel of the
same name whose parameters are places. The compiler sees the same pointers to global memory that do not
overlap: it generates the same loads, with one read of constant memory for each array before them.
"""

from __future__ import annotations

import re

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.plan import (
    ADDRESSES,
    ADDRESSES_AT_ONCE,
    ADDRESSES_COUNT,
    ENTRY_SHIFT,
    SET_ADDRESSES,
)

PLACE = "mainspring_place"
"""The type of a kernel's parameter that is an array."""

_TABLE = f"""\
// An entry of the table, and the bytes from its address to an array.
typedef unsigned long long {PLACE};
struct mainspring_entries {{
  unsigned long long addresses[{ADDRESSES_AT_ONCE}];
}};
__constant__ unsigned long long {ADDRESSES}[{ADDRESSES_COUNT}];
// The conversion says that the array is in global memory: what is read from a table could be anywhere.
static __device__ __forceinline__ void* mainspring_at({PLACE} place) {{
  const unsigned long long offset = place & {(1 << ENTRY_SHIFT) - 1:#x}ULL;
  return __cvta_global_to_generic({ADDRESSES}[place >> {ENTRY_SHIFT}] + offset);
}}
"""
_SET = f"""\
// Writes the table through its address in global memory: no kernel that reads it runs meanwhile.
extern "C" __global__ void __launch_bounds__({ADDRESSES_AT_ONCE}) {SET_ADDRESSES}(\
unsigned long long* __restrict__ first, const mainspring_entries entries) {{
  first[threadIdx.x] = entries.addresses[threadIdx.x];
}}
"""
_KERNEL = re.compile(
    r'^extern "C" __global__ void (?P<bounds>__launch_bounds__\([^)]*\) )?(?P<name>\w+)'
    r"\((?P<parameters>[^()]*)\)(?P<end>;\n| \{)",
    re.MULTILINE,
)
_ARRAY = re.compile(r"(?P<type>\w[\w ]*\*) *(?:__restrict__ +)?(?P<name>\w+)")


def through_addresses(source: str) -> str:
    """Return the source with kernels whose arrays are places; raise `CompileError` if it has others.

    Numbers among the parameters stay as they are. The kernel `SET_ADDRESSES` comes first.
    """
    kernels = list(_KERNEL.finditer(source))
    if not kernels or len(kernels) != source.count("__global__"):
        raise CompileError("TVM generated kernels of a form that can't be given a table of addresses")
    begin = kernels[0].start()
    declared = "".join(f"{_function(kernel)};\n" for kernel in kernels if not _is_declaration(kernel))
    return source[:begin] + _TABLE + declared + _SET + _KERNEL.sub(_wrapped, source[begin:])


def _wrapped(kernel: re.Match[str]) -> str:
    """Return a kernel of places, followed by the beginning of the function that it calls."""
    if _is_declaration(kernel):
        return ""
    parameters, arguments = [], []
    for declared in filter(None, map(str.strip, kernel["parameters"].split(","))):
        array = _ARRAY.fullmatch(declared)
        if array is None:
            parameters.append(declared)
            arguments.append(declared.split()[-1])
        else:
            parameters.append(f"{PLACE} {array['name']}")
            arguments.append(f"({array['type']})mainspring_at({array['name']})")
    name = kernel["name"]
    return (
        f'extern "C" __global__ void {kernel["bounds"] or ""}{name}({", ".join(parameters)}) {{\n'
        f"  {name}_arrays({', '.join(arguments)});\n}}\n"
        f"{_function(kernel)} {{"
    )


def _is_declaration(kernel: re.Match[str]) -> bool:
    return kernel["end"].startswith(";")


def _function(kernel: re.Match[str]) -> str:
    """Return the head of the function that TVM's kernel becomes."""
    return f"static __device__ __forceinline__ void {kernel['name']}_arrays({kernel['parameters']})"
