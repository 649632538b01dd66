"""What makes an action unusable whatever the moment: the checks that `WorkerCore.submit` makes. Pure."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from mainspring.messages.actions import Infer, Load
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec
from mainspring.worker.io_memory import slot_layout
from mainspring.worker.pages import PageTable
from mainspring.worker.slots import SlotLayout

Ending = tuple[Status, str]
"""How an action ends without having run, and why, for a person."""

REMEMBERED_IDS = 65536
"""Action ids that are remembered to recognise a repeated one."""


class RecentIds:
    """The last `REMEMBERED_IDS` action ids."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._order: deque[int] = deque()

    def __contains__(self, action_id: int) -> bool:
        return action_id in self._known

    def add(self, action_id: int) -> bool:
        """Remember an id; return whether it was new."""
        if action_id in self._known:
            return False
        self._known.add(action_id)
        self._order.append(action_id)
        if len(self._order) > REMEMBERED_IDS:
            self._known.discard(self._order.popleft())
        return True


class PreparedModel:
    """A model that may be loaded, and the layouts of its batches."""

    def __init__(self, model: ModelSpec, page_bytes: int) -> None:
        """Raise `ValueError` for a model that no worker could run, naming what is wrong with it."""
        sizes = model.batch_sizes
        if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ValueError(f"batch sizes must be ascending and positive, not {sizes}")
        if any(extent < 1 for extent in model.extents):
            raise ValueError(f"extents must be positive, not {model.extents}")
        if model.pages * page_bytes < model.weights_bytes:
            raise ValueError(
                f"{model.pages} pages of {page_bytes} bytes can't hold {model.weights_bytes} bytes"
            )
        self.model = model
        self.layouts: dict[int, SlotLayout] = {size: slot_layout(model, size) for size in sizes}

    def same_artifact(self, model: ModelSpec) -> bool:
        """Whether ``model`` has these weights, this executable and these batch sizes."""
        return self.model.artifact == model.artifact


def load_fault(action: Load, prepared: PreparedModel | None, pages: PageTable) -> Ending | None:
    """Why the Load can never begin, or None."""
    if prepared is None:
        return Status.NOT_PREPARED, f"model {action.model} is not prepared"
    if action.earliest_ns > action.latest_ns:
        return _empty_window(action)
    fault = pages.malformed(prepared.model.extents, action.pages)
    return (Status.BAD_PAGES, fault) if fault else None


def infer_fault(action: Infer, prepared: PreparedModel) -> Ending | None:
    """Why the Infer can never begin, or None."""
    if action.earliest_ns > action.latest_ns:
        return _empty_window(action)
    if action.batch_size not in prepared.layouts:
        sizes = prepared.model.batch_sizes
        return Status.BAD_ACTION, f"batch size {action.batch_size} is none of {action.model}'s {sizes}"
    ids, rows = action.request_ids, action.rows
    if not ids or len(set(ids)) != len(ids):
        return Status.BAD_ACTION, "request ids must be at least one, each named once"
    if len(rows) != len(ids) or any(count < 1 for count in rows):
        return Status.BAD_ACTION, f"each of {len(ids)} requests needs one row or more, not {rows}"
    if sum(rows) > action.batch_size:
        return Status.BAD_ACTION, f"{sum(rows)} rows are more than the batch of {action.batch_size}"
    return None


def _empty_window(action: Load | Infer) -> Ending:
    return Status.BAD_ACTION, f"earliest {action.earliest_ns} is after latest {action.latest_ns}"
