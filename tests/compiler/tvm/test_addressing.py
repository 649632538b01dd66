"""Kernels that find their arrays through a table: what becomes of TVM's source."""

from __future__ import annotations

import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.plan import ADDRESSES, ADDRESSES_COUNT, SET_ADDRESSES
from mainspring.compiler.tvm.addressing import through_addresses

PARAMETERS = "float* __restrict__ y, const float* __restrict__ x, unsigned char* mask, int n"
HEAD = f'extern "C" __global__ void __launch_bounds__(64) scale({PARAMETERS})'
SOURCE = f"""\
#include <cuda.h>
{HEAD};
{HEAD} {{
  __shared__ float held[64];
  y[n] = x[n];
}}
"""


def test_a_kernel_of_pointers_becomes_one_of_places() -> None:
    lines = through_addresses(SOURCE).splitlines()
    assert lines[0] == "#include <cuda.h>"
    function = f"static __device__ __forceinline__ void scale_arrays({PARAMETERS})"
    begin = lines.index(f"{function} {{")
    assert f"{function};" in lines[:begin]
    assert lines[begin - 3 :] == [
        'extern "C" __global__ void __launch_bounds__(64) scale(mainspring_place y, mainspring_place x, '
        "mainspring_place mask, int n) {",
        "  scale_arrays((float*)mainspring_at(y), (const float*)mainspring_at(x), "
        "(unsigned char*)mainspring_at(mask), n);",
        "}",
        f"{function} {{",
        "  __shared__ float held[64];",
        "  y[n] = x[n];",
        "}",
    ]


def test_there_is_one_table_and_one_kernel_that_writes_it() -> None:
    found = through_addresses(SOURCE + SOURCE.replace("scale", "other"))
    assert found.count(f"__constant__ unsigned long long {ADDRESSES}[{ADDRESSES_COUNT}];") == 1
    assert found.count(f"{SET_ADDRESSES}(") == 1
    assert found.count('extern "C" __global__') == 3


@pytest.mark.parametrize(
    "source",
    [
        "void f() {}\n",
        SOURCE.replace('extern "C" ', ""),
        SOURCE + "__global__ void other(float* x) {\n}\n",
        SOURCE.replace("int n)", "int (*n)(int))"),
    ],
)
def test_kernels_of_another_form_are_refused(source: str) -> None:
    with pytest.raises(CompileError, match="can't be given a table of addresses"):
        through_addresses(source)
