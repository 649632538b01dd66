"""Where a request's time on this worker went, as its `Output` reports it; used by the network thread alone.

Drivers measure the instants for other reasons; this keeps them until the outputs leave.
"""

from __future__ import annotations

from mainspring.messages.actions import Action, Infer, Load, Result
from mainspring.messages.codes import Status
from mainspring.messages.peers import OutputTimes


class RequestTiming:
    """When inputs were placed, and when the weights that a model runs with were loaded."""

    def __init__(self) -> None:
        self._placed: dict[int, dict[int, tuple[int, int]]] = {}
        """By action and request: how long the copy took and when it ended."""
        self._cold: dict[int, tuple[str, frozenset[int]]] = {}
        """By INFER: its model, and its requests that found the model resident nowhere."""
        self._loading: dict[int, str] = {}
        self._loaded: dict[str, tuple[int, int]] = {}
        """Begin and end of each model's last LOAD."""

    def accepted(self, action: Action) -> None:
        """An action was accepted."""
        if isinstance(action, Infer):
            if True in action.cold:
                cold = frozenset(
                    id_ for id_, cold in zip(action.request_ids, action.cold, strict=True) if cold
                )
                self._cold[action.action_id] = action.model, cold
        elif isinstance(action, Load):
            self._loading[action.action_id] = action.model

    def placed(self, action_id: int, request_id: int, begin_ns: int, end_ns: int) -> None:
        """A request's inputs were copied to their rows."""
        self._placed.setdefault(action_id, {})[request_id] = end_ns - begin_ns, end_ns

    def ended(self, result: Result) -> None:
        """An action has ended."""
        self._placed.pop(result.action_id, None)
        self._cold.pop(result.action_id, None)
        model = self._loading.pop(result.action_id, None)
        if model is not None and result.status is Status.OK:
            self._loaded[model] = result.begin_ns, result.end_ns

    def unloaded(self, model: str) -> None:
        """A model is not resident any more."""
        self._loaded.pop(model, None)

    def clear(self) -> None:
        """Forget the actions of a controller that is gone."""
        self._placed.clear()
        self._cold.clear()
        self._loading.clear()

    def times(self, now_ns: int, result: Result, request_id: int) -> OutputTimes | None:
        """Return where a request's time went as its outputs leave; None if none of its inputs were placed."""
        placed = self._placed.get(result.action_id, {}).get(request_id)
        if placed is None:
            return None
        input_ns, placed_ns = placed
        wait_ns, output_ns = max(0, result.begin_ns - placed_ns), now_ns - result.end_ns
        model, cold = self._cold.get(result.action_id, ("", ()))
        load = self._loaded.get(model) if request_id in cold else None
        if load is None:
            return OutputTimes(input_ns, wait_ns, output_ns)
        begin_ns, end_ns = load
        return OutputTimes(input_ns, wait_ns, output_ns, end_ns - begin_ns, result.begin_ns - end_ns)
