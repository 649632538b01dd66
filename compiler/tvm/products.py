"""Sums of products as products of matrices, ``C[b, i, j] += A[b, i, k] * B[b, k, j]``, with double buffering.

A block's threads multiply one slice while the next is copied into shared memory by ``cp.async``, past the
registers; a copy gives zeros where an image is padded. A thread waits for its own copies, then for the others
at one barrier for each slice: past it the slice is there, and the buffer of the slice before it is read no
more. The loop has one round more than there are slices, so that neither the copying nor the multiplying is
written twice. TVM does not see that buffers alternate and would place two barriers: to it the stores are
calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.s_tir.dlight.gpu import matmul
from tvm_ffi.structural import structural_walk

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.tvm.tiles import Product

WIDE = 4
"""Elements of 4 bytes that a thread copies at once: 16 bytes."""


def only_sum(schedule: Any) -> Any | None:
    """Return the function's sum; None unless all else that it computes is elementwise."""
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    sums = matmul.get_reduction_blocks(schedule, blocks)
    return None if sums is None else sums[0]


def as_product(schedule: Any, total: Any) -> None:
    """Give the sum ``total`` four axes: batch, row, column, term. Its reads are the left and right factor."""
    left = schedule.reindex(total, ("read", 0))
    right = schedule.reindex(total, ("read", 1))
    result = schedule.reindex(total, ("write", 0))
    kind = matmul.IterKind
    in_left, in_right, in_result, every = matmul.detect_iter_traits(schedule.get(total))

    def fused(traits: Any, *order: Any) -> Any:
        return matmul.make_iter_fusion_index_map(traits, list(order))

    s, i, j, k = kind.kIter_S, kind.kIter_I, kind.kIter_J, kind.kIter_K
    schedule.transform_layout(left, ("write", 0), fused(in_left, s, i, k))
    schedule.transform_layout(right, ("write", 0), fused(in_right, s, k, j))
    schedule.transform_layout(result, ("read", 0), fused(in_result, s, i, j))
    schedule.transform_block_layout(total, fused(every, s, i, j, k))


def size_of(schedule: Any, total: Any) -> Product:
    """Return the extents of a sum's four axes."""
    return Product(*(int(each.dom.extent) for each in schedule.get(total).iter_vars))


def wide_of(block: Any) -> int:
    """Return how many elements a thread may copy at once in a block that copies an operand of a product.

    Neighbours along the block's last axis have to be neighbours in memory, in groups that begin at multiples
    of 16 bytes.
    """
    last = block.iter_vars[-1].var
    (read,) = block.reads
    innermost = read.region[-1].min
    if isinstance(innermost, tirx.FloorMod):
        innermost = innermost.a if int(innermost.b) % WIDE == 0 else None
    adjacent = last.same_as(innermost) and int(read.source.ty.shape[-1]) % WIDE == 0
    return WIDE if adjacent else 1


def in_groups(function: Any) -> Any:
    """Return a scheduled function in which slices of operands are copied in groups of `WIDE` elements.

    What decides whether and from where an element is copied, such as a convolution's padding, is the same
    for a group; it is written so that TVM sees that, and makes one condition and one load of the group.
    """

    def store(statement: Any) -> Any:
        last = statement.indices[-1]
        if statement.buffer.scope() != "shared" or not isinstance(last, tirx.Var):
            return statement
        value = _by_group(statement.value, last)
        return tirx.BufferStore(statement.buffer, value, statement.indices)

    return rewritten(function, tirx.BufferStore, store)


def rewritten(function: Any, kind: Any, replaced: Callable[[Any], Any]) -> Any:
    """Return a function in which each statement of a ``kind`` is what ``replaced`` returns for it."""
    body = tvm_ffi.structural_map(function.body, (kind, replaced))
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)


def with_room(function: Any, blocks: int) -> Any:
    """Return a function whose threads may take as many registers as so many blocks leave them.

    ``blocks``: of a multiprocessor at once. Without it the assembler may spill a few registers for one more.
    Threads of the function have a `threadIdx.y`.
    """
    count = tirx.const(blocks, "int32")

    def loop(statement: Any) -> Any:
        binding = statement.thread_binding
        if binding is None or binding.thread_tag != "threadIdx.y":
            return statement
        body = tirx.AttrStmt(count, "tirx.launch_bounds_min_blocks_per_sm", count, statement.body)
        kept = (statement.loop_var, statement.min, statement.extent, statement.kind)
        return tirx.For(*kept, body, binding, statement.annotations)

    return rewritten(function, tirx.For, loop)


def _by_group(value: Any, index: Any) -> Any:
    """Return the value with ``index`` written as a group's number and a place in the group."""
    group, place = tirx.Var("group", str(index.ty)), tirx.Var("place", str(index.ty))
    analyzer = sym.Analyzer()
    analyzer.bind(place, tvm.ir.Range(0, WIDE))
    divided = analyzer.simplify(_replaced(value, {index: group * WIDE + place}))
    return _replaced(divided, {group: index // WIDE, place: index % WIDE})


def _replaced(value: Any, variables: dict[Any, Any]) -> Any:
    def replace(variable: Any) -> Any:
        return variables.get(variable, variable)

    return tvm_ffi.structural_map(value, (tirx.Var, replace))


MARK = "mainspring.double_buffered"
"""The attribute of a function whose slices are to be copied so."""

OLDEST = 80
"""The first architecture that copies in the background: ``sm_80``."""

COPY = "mainspring_copy_"
"""Prefix of the CUDA function that begins a copy, before the number of bytes."""

_COMMIT, _WAIT = "mainspring_commit", "mainspring_wait"

DEVICE_CODE = r"""
// Copies in the background from global to shared memory, or zeros if nothing is given; each thread's own.
#ifdef __CUDACC__
static __device__ __forceinline__ void mainspring_copy_16(void* into, const void* from, int given) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"((unsigned)__cvta_generic_to_shared(into)), "l"(__cvta_generic_to_global(from)),
                  "r"(given ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void mainspring_copy_4(void* into, const void* from, int given) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :: "r"((unsigned)__cvta_generic_to_shared(into)), "l"(__cvta_generic_to_global(from)),
                  "r"(given ? 4 : 0) : "memory");
}
static __device__ __forceinline__ void mainspring_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until no more than so many groups of copies are under way, the latest.
template <int GROUPS>
static __device__ __forceinline__ void mainspring_wait_group() {
  asm volatile("cp.async.wait_group %0;" :: "n"(GROUPS) : "memory");
}
#endif
static __device__ __forceinline__ void mainspring_wait() { mainspring_wait_group<0>(); }
"""
"""Functions that generated kernels call; on anything but a GPU others stand in for those of assembler."""


def copies_only(function: Any) -> bool:
    """Return whether a scheduled function stores nothing to shared memory but what it reads, or zeros
    instead."""
    stores: list[Any] = []
    structural_walk(function.body, [(tirx.BufferStore, stores.append)])
    shared = [each for each in stores if each.buffer.scope() == "shared"]
    return bool(shared) and all(_source(each.value) is not None for each in shared)


def double_buffered(function: Any, target: Any) -> Any:
    """Return a scheduled function, lowered to plain loops, whose slices have two buffers each.

    Raises `CompileError` if it has no loop over slices that are copied.
    """
    lowered = _lowered(function, target)
    doubled: dict[Any, Any] = {}

    def allocation(statement: Any) -> Any:
        buffer = statement.buffer
        if buffer.scope() != "shared":
            return statement
        (size,) = buffer.ty.shape
        twice = tirx.decl_buffer(
            (int(size) * 2,), str(buffer.ty.dtype), buffer.name, scope="shared", layout=None
        )
        doubled[buffer] = twice
        return tirx.AllocBuffer(twice)

    allocated = rewritten(lowered, tirx.AllocBuffer, allocation)
    found: list[Any] = []

    def loop(statement: Any) -> Any:
        if statement.kind != tirx.ForKind.SERIAL or not isinstance(statement.body, tirx.SeqStmt):
            return statement
        parts = [*statement.body.seq]
        fetching = [each for each in parts if _fetches(each)]
        if not fetching:
            return statement
        found.append(statement)
        return _staggered(statement, fetching, [each for each in parts if not _fetches(each)], doubled)

    made = rewritten(allocated, tirx.For, loop)
    if not found:
        raise CompileError("a kernel copies no slices into shared memory, which can't have two buffers then")
    return made


def _lowered(function: Any, target: Any) -> Any:
    """Return a scheduled function as plain loops over flat arrays: what TVM makes before it puts barriers."""
    stir, plain = s_tir.transform, tirx.transform
    passes = [
        plain.BindTarget(target),
        stir.CanonicalizeLoop(),
        stir.LowerCrossThreadReduction(),
        stir.LowerInitBlock(),
        stir.PlanAndUpdateBufferAllocationLocation(),
        stir.ConvertBlocksToOpaque(),
        stir.LiftThreadBinding(),
        stir.CompactBufferAllocation(),
        stir.UnifyThreadBinding(),
        stir.LowerMatchBuffer(),
        stir.StmtSimplify(),
        stir.LowerOpaqueBlock(),
        plain.FlattenBuffer(),
        plain.NarrowDataType(32),
        stir.LoopPartition(),
        plain.VectorizeLoop(True),
        plain.StorageRewrite(),
        plain.StmtSimplify(),
    ]
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return tvm.ir.transform.Sequential(passes)(module)["main"]


def _fetches(statement: Any) -> bool:
    stores: list[Any] = []
    structural_walk(statement, [(tirx.BufferStore, stores.append)])
    return any(each.buffer.scope() == "shared" for each in stores)


def _staggered(loop: Any, fetching: list[Any], multiplying: list[Any], doubled: dict[Any, Any]) -> Any:
    """Return a loop over slices that copies one and multiplies the one before it."""
    number, slices = loop.loop_var, loop.extent

    def copied(store: Any) -> Any:
        return store if store.buffer.scope() != "shared" else _copy(store, number % 2, doubled)

    def loaded(load: Any) -> Any:
        buffer = doubled.get(load.source)
        if buffer is None:
            return load
        (index,) = load.indices
        return buffer[_moved(index, (number + 1) % 2 * load.source.ty.shape[0])]

    def earlier(variable: Any) -> Any:
        return number - 1 if variable.same_as(number) else variable

    copies = [tvm_ffi.structural_map(each, (tirx.BufferStore, copied)) for each in fetching]
    before = [tvm_ffi.structural_map(each, (tirx.Var, earlier)) for each in multiplying]
    products = [tvm_ffi.structural_map(each, (tvm.ir.TensorLoad, loaded)) for each in before]
    barrier = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
    body = [
        _call(_WAIT),
        barrier,
        tirx.IfThenElse(number < slices, tirx.SeqStmt([*copies, _call(_COMMIT)]), None),
        tirx.IfThenElse(number > 0, tirx.SeqStmt(products) if len(products) > 1 else products[0], None),
    ]
    # Unrolled as far as it is long, it takes more registers than there are.
    once = {**loop.annotations, "disable_unroll": True}
    return tirx.For(number, loop.min, slices + 1, loop.kind, tirx.SeqStmt(body), None, once)


def _copy(store: Any, which: Any, doubled: dict[Any, Any]) -> Any:
    """Return a call that copies to one of the two buffers what a store would store."""
    source = _source(store.value)
    (index,) = store.indices
    wide = isinstance(index, tirx.Ramp)
    if source is None or (wide and int(index.lanes) != WIDE):
        raise CompileError(f"a kernel computes what it stores to shared memory, so it can't copy it: {store}")
    load, given = source
    (place,) = load.indices
    into = doubled[store.buffer][_first(index) + which * store.buffer.ty.shape[0]]
    name = f"{COPY}{4 * (WIDE if wide else 1)}"
    return _call(name, tirx.address_of(into), tirx.address_of(load.source[_first(place)]), given)


def _source(value: Any) -> tuple[Any, Any] | None:
    """Return what a value is read from, and whether it is read instead of being zero; None if neither."""
    given = tirx.const(1, "int32")
    while getattr(getattr(value, "op", None), "name", "") == "prim.if_then_else":
        condition, value, otherwise = value.args
        if isinstance(otherwise, tirx.Broadcast):
            otherwise = otherwise.value
        if not isinstance(otherwise, tirx.FloatImm) or otherwise.value != 0 or "x" in str(condition.ty):
            return None
        given = tirx.Select(condition, given, tirx.const(0, "int32"))
    is_float = isinstance(value, tvm.ir.TensorLoad) and str(value.source.ty.dtype) == "float32"
    return (value, given) if is_float else None


def _first(index: Any) -> Any:
    return index.base if isinstance(index, tirx.Ramp) else index


def _moved(index: Any, by: Any) -> Any:
    return (
        tirx.Ramp(index.base + by, index.stride, index.lanes) if isinstance(index, tirx.Ramp) else index + by
    )


def _call(name: str, *arguments: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("void", name, *arguments))
