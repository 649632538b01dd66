"""Schedules of loops on a CPU: in one thread, with vectors along the last axis and sums in registers.

The sums of a convolution, a product of matrices or a pool, for a few neighbouring pixels and one or more
vectors of channels, stay in registers while all terms are added; only then they pass through what follows
(bias, activation, residual) and are stored. The weights of one tile of channels are read for all pixels
before the next tile's, so they stay in the second-level cache. Each function is tried: one that does not fit
keeps its plain loops, which compute the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import s_tir, tirx

_LANES = 8
"""Floats in a vector of AVX2."""
_REGISTERS = 14
"""Vector registers that sums may take; the others of the sixteen hold terms."""


def schedule_cpu(module: Any) -> Any:
    """Return the module with each function's loops arranged for the CPU.

    An array that only one loop needs is made in that loop, so that a tile's sums are no larger than the tile.
    """
    functions = {variable: _scheduled(function) for variable, function in module.functions.items()}
    passes = (s_tir.transform.LowerInitBlock(), s_tir.transform.PlanAndUpdateBufferAllocationLocation())
    return tvm.transform.Sequential(passes)(tvm.IRModule(functions))


def _scheduled(function: Any) -> Any:
    """Return the function arranged as far as it fits."""
    schedule = s_tir.Schedule(function)
    _inline(schedule)
    plain = schedule.mod["main"]
    try:
        _tile_sum(schedule)
    except (s_tir.schedule.ScheduleError, _Unfit):
        return plain
    return schedule.mod["main"]


class _Unfit(Exception):
    """The function is not of the form that this file arranges."""


def _inline(schedule: Any) -> None:
    """Inline elementwise computations where they are used, except padding.

    The condition of a padded image would be in the innermost loop, so the padded image is made first.
    """
    for block in _blocks(schedule):
        if _is_sum(schedule, block) or _is_padding(schedule, block):
            continue
        try:
            schedule.compute_inline(block)
        except s_tir.schedule.ScheduleError:
            continue


def _tile_sum(schedule: Any) -> None:
    """Arrange the function's only sum in tiles; raise `_Unfit` or ScheduleError if that is impossible."""
    sums = [block for block in _blocks(schedule) if _is_sum(schedule, block)]
    if len(sums) != 1:
        raise _Unfit
    (total,) = sums
    consumers = schedule.get_consumers(total)
    if len(consumers) > 1:
        raise _Unfit
    stored = consumers[0] if consumers else schedule.cache_write(total, 0, "global")
    loops = schedule.get_loops(stored)
    extents = [int(schedule.get(loop).extent) for loop in loops]
    if len(loops) < 2 or len(loops) != _spatial(schedule, total):
        raise _Unfit
    tile = _tile(extents[-2], extents[-1])
    *outer, rows, columns = loops
    rows_outer, rows_inner = schedule.split(rows, [None, tile.rows])
    columns_outer, columns_inner = schedule.split(columns, [None, tile.columns])
    schedule.reorder(columns_outer, *outer, rows_outer, rows_inner, columns_inner)
    schedule.compute_at(total, rows_outer)
    _spread(schedule, [rows_inner, columns_inner])
    _arrange_terms(schedule, total, len(loops))


def _arrange_terms(schedule: Any, total: Any, outer: int) -> None:
    """Add one term after the other to a whole tile, whose sums begin at zero in registers."""
    loops = schedule.get_loops(total)[outer:]
    kinds = _kinds(schedule, total)[outer:]
    tiles = [loop for loop, kind in zip(loops, kinds, strict=True) if not kind]
    terms = [loop for loop, kind in zip(loops, kinds, strict=True) if kind]
    if not terms:
        raise _Unfit
    schedule.reorder(*terms, *tiles)
    _spread(schedule, tiles)
    initial = schedule.decompose_reduction(total, terms[0])
    *others, lanes = schedule.get_loops(initial)[outer:]
    for loop in others:
        schedule.unroll(loop)
    schedule.vectorize(lanes)


def _spread(schedule: Any, tiles: list[Any]) -> None:
    """Run the loops over a tile as vectors of one register each, all of them unrolled."""
    *others, columns = tiles
    vectors, lanes = schedule.split(columns, [None, _LANES])
    for loop in (*others, vectors):
        schedule.unroll(loop)
    schedule.vectorize(lanes)


class _Tile(NamedTuple):
    rows: int
    columns: int


def _tile(rows: int, columns: int) -> _Tile:
    """Return the tile with the most multiplications for each load that divides the extents.

    Raises `_Unfit` where no tile is as wide as a vector.
    """
    best, best_gain = None, 0.0
    for vectors in range(1, _REGISTERS + 1):
        if columns % (vectors * _LANES):
            continue
        for count in range(1, _REGISTERS // vectors + 1):
            gain = vectors * count / (vectors + count)
            if rows % count == 0 and gain > best_gain:
                best, best_gain = _Tile(count, vectors * _LANES), gain
    if best is None:
        raise _Unfit
    return best


def _blocks(schedule: Any) -> list[Any]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def _is_sum(schedule: Any, block: Any) -> bool:
    """Return whether the block reduces an axis: a sum, a maximum."""
    return schedule.get(block).init is not None


def _is_padding(schedule: Any, block: Any) -> bool:
    """Return whether the block reads under a condition, and a sum reads its result."""
    if not any(_is_sum(schedule, consumer) for consumer in schedule.get_consumers(block)):
        return False
    found: list[Any] = []

    def called(call: Any) -> None:
        if str(getattr(call.op, "name", "")).endswith(".if_then_else"):
            found.append(call)

    tvm_ffi.structural_walk(schedule.get(block).body, [(tvm.ir.Call, called)])
    return bool(found)


def _spatial(schedule: Any, block: Any) -> int:
    """Return how many axes the block's result has."""
    return sum(each.iter_type == tirx.IterVar.DataPar for each in schedule.get(block).iter_vars)


def _kinds(schedule: Any, block: Any) -> list[bool]:
    """Return for each loop around the block whether it goes over terms of a sum."""
    loops = schedule.get_loops(block)
    realize = schedule.get(loops[-1]).body
    terms: set[Any] = set()
    for value, each in zip(realize.iter_values, schedule.get(block).iter_vars, strict=True):
        if each.iter_type != tirx.IterVar.DataPar:
            terms.update(tirx.analysis.undefined_vars(value))
    return [schedule.get(loop).loop_var in terms for loop in loops]
