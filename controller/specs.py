"""What is wrong with a model that came from outside: the checks that stand before the scheduler. Pure.

Every number is bounded, so that sums and products of them stay within what messages and clocks can hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from mainspring.messages.model import DTYPES, PAGE_BYTES, ModelSpec, ServedModel, TensorSpec, is_dtype

MAX_NAME_CHARACTERS = 128
MAX_PAGES = 1 << 24
"""Pages that one worker, and so one model, may have: 256 TiB."""
MAX_BATCH_SIZE = 65_536
MAX_DURATION_NS = 3_600 * 10**9
"""The longest LOAD or INFER that a profile may name: an hour."""
MAX_ROW_BYTES = 1 << 40
"""Of one tensor."""
MAX_VERSION = (1 << 63) - 1
MAX_VERSIONS = 1024
"""Versions of one model that may be served at one time."""
MAX_CONFIG_CHARACTERS = 1 << 20
MAX_LABELS_CHARACTERS = 4 << 20
"""Of all outputs of a model together."""


def spec_fault(spec: ModelSpec) -> str | None:
    """Return what is wrong with a model that came from outside, or None."""
    sizes = spec.batch_sizes
    if not 0 < len(spec.name) <= MAX_NAME_CHARACTERS:
        return f"its name has {len(spec.name)} characters; it must have 1 to {MAX_NAME_CHARACTERS}"
    if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
        return f"its batch sizes are {sizes}; they must be positive and ascending, such as (1, 2, 4, 8, 16)"
    if sizes[-1] > MAX_BATCH_SIZE:
        return f"its largest batch size is {sizes[-1]}; it may be at most {MAX_BATCH_SIZE}"
    return (
        _memory_fault(spec)
        or _profile_fault(spec)
        or _tensors_fault("inputs", spec.inputs)
        or _tensors_fault("outputs", spec.outputs)
    )


def served_fault(model: ServedModel) -> str | None:
    """Return what is wrong with a repository's model that came from outside, or None."""
    if not 0 < len(model.name) <= MAX_NAME_CHARACTERS:
        return f"its name has {len(model.name)} characters; it must have 1 to {MAX_NAME_CHARACTERS}"
    if len(model.versions) > MAX_VERSIONS:
        return f"it has {len(model.versions)} versions; it may have at most {MAX_VERSIONS}"
    wrong = [version for version in model.versions if not 0 < version <= MAX_VERSION]
    if wrong:
        return f"it has a version {wrong[0]}; versions are numbers from 1 up"
    if model.slo_ns is not None and not 0 < model.slo_ns <= MAX_DURATION_NS:
        return f"its SLO is {model.slo_ns:,} ns; it must be above 0 and at most {MAX_DURATION_NS:,}"
    labels = sum(len(label) for named in model.labels.values() for label in named)
    if labels > MAX_LABELS_CHARACTERS:
        return f"its labels have {labels:,} characters; they may have {MAX_LABELS_CHARACTERS:,}"
    if len(model.config) > MAX_CONFIG_CHARACTERS:
        return (
            f"its configuration has {len(model.config):,} characters; it may have {MAX_CONFIG_CHARACTERS:,}"
        )
    return None


def _memory_fault(spec: ModelSpec) -> str | None:
    if any(extent < 1 for extent in spec.extents):
        return f"its extents are {spec.extents}; each must have at least one page"
    if spec.pages > MAX_PAGES:
        return f"its extents have {spec.pages} pages; they may have at most {MAX_PAGES}"
    if not 0 <= spec.weights_bytes <= spec.pages * PAGE_BYTES:
        return f"its weights have {spec.weights_bytes} bytes, its extents hold {spec.pages * PAGE_BYTES}"
    return None


def _profile_fault(spec: ModelSpec) -> str | None:
    for kind, profile in spec.profiles.items():
        missing = [size for size in spec.batch_sizes if profile.infer_ns.get(size, 0) < 1]
        if missing or profile.load_ns < 0:
            return f"its profile for {kind!r} lacks a positive duration for batch sizes {missing} or for LOAD"
        longest_ns = max(profile.load_ns, *profile.infer_ns.values())
        if longest_ns > MAX_DURATION_NS:
            return (
                f"its profile for {kind!r} has a duration of {longest_ns / 1e9:,.0f} s; "
                f"it may be at most {MAX_DURATION_NS // 10**9:,} s"
            )
    return None


def _tensors_fault(kind: str, tensors: Sequence[TensorSpec]) -> str | None:
    twice = [name for name, count in Counter(tensor.name for tensor in tensors).items() if count > 1]
    if twice:
        return f"its {kind} have the name {twice[0]!r} more than once; each needs a name of its own"
    for tensor in tensors:
        if not is_dtype(tensor.dtype):
            return (
                f"tensor {tensor.name!r} has dtype {tensor.dtype!r}; it must be one of {', '.join(DTYPES)}, "
                "or slots of bytes such as S64"
            )
        if any(axis < 0 for axis in tensor.shape):
            return f"tensor {tensor.name!r} has shape {tensor.shape}; each axis must be at least 0"
        if tensor.row_bytes > MAX_ROW_BYTES:
            return (
                f"a row of tensor {tensor.name!r} has {tensor.row_bytes:,} bytes; "
                f"it may have at most {MAX_ROW_BYTES:,}"
            )
    return None
