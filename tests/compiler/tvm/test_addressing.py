"""Kernels that find their arrays through a table: what becomes of TVM's source."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.plan import ADDRESSES, ADDRESSES_COUNT, SET_ADDRESSES
from mainspring.compiler.tvm.kernels import through_addresses

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


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="NVIDIA's compiler says what a GPU would run")
def test_arrays_are_read_as_global_memory_that_nothing_else_writes(tmp_path: Path) -> None:
    (tmp_path / "kernels.cu").write_text(through_addresses(SOURCE.replace("#include <cuda.h>\n", "")))
    command = ["nvcc", "-ptx", "-arch=sm_90", "-std=c++17", "-w", "-o", "kernels.ptx", "kernels.cu"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    (kernel,) = re.findall(r"\.entry scale\(.*?\n}", (tmp_path / "kernels.ptx").read_text(), re.DOTALL)
    assert re.findall(r"\b((?:ld|st)\.(?!param)[a-z.]+)\.\w+ ", kernel) == [
        *("ld.const", "ld.const"),
        *("ld.global.nc", "st.global"),
    ]
