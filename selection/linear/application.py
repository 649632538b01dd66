"""An application that predicts with a user's weights over features of items (Velox, 2.3 to 2.5). Pure.

Long work goes through a `Run`, which may do it elsewhere, in order; ledger and counts stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import msgspec
import numpy as np

from mainspring.messages.applications import ApplicationSpec
from mainspring.selection.application import Application, Bounds, Reply
from mainspring.selection.ledger import Answered
from mainspring.selection.linear.model import LinearModel
from mainspring.selection.linear.ranking import Best, Items
from mainspring.selection.linear.weights import Matrix
from mainspring.selection.outputs import Answer, Array
from mainspring.selection.policy import Inputs

ITEM = "item"
"""The input of an application with a table: the number of an item."""
_FEATURES, _RANDOM = "features", "random"
Run = Callable[[float, Callable[[], Any], Callable[[Any], None]], None]
"""Function that does work of about so many nanoseconds, and hands what it returns to another one."""


def at_once(_cost_ns: float, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
    """Do the work here and now."""
    then(work())


class Place(NamedTuple):
    """The place where a model's work is done."""

    run: Run = at_once
    exclusive: AbstractContextManager[Any] = nullcontext()
    """Held while the model is used."""


class Ranked(NamedTuple):
    """The best items, as a client is told of them."""

    query_id: int
    best: Best
    version: int


class LinearApplication(Application):
    """The users' weights of one application."""

    def __init__(
        self,
        spec: ApplicationSpec,
        bounds: Bounds,
        table: Matrix | None,
        rank: int,
        place: Place = Place(),  # noqa: B008
    ) -> None:
        """``table`` and ``rank`` as of `LinearModel`. Raises ValueError as it, and as an `Application`."""
        super().__init__(msgspec.structs.replace(spec, kind="value", span=1.0), bounds)
        self.spec = spec
        self.model = LinearModel(self.policy.options, table, rank)
        self._place = place

    @property
    def version(self) -> int:
        """Return the number of the table and weights that serve."""
        return self.model.now.number

    def changed(self, spec: ApplicationSpec) -> Application:
        """Raise ValueError: another specification is another application, with weights of its own."""
        raise ValueError("an application with policy 'linear' can't be changed: remove it first")

    def select(
        self, now_ns: int, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        """Return the member that computes features, if there is one; raise as any application."""
        if context is not None:
            self._check(context)
        self.counts["requests"] += 1
        self.asked.update(self.members)
        return dict.fromkeys(self.members, 1.0)

    def combine(
        self,
        now_ns: int,
        inputs: Inputs,
        selected: Mapping[str, float],
        outputs: Mapping[str, Array],
        context: str | None = None,
    ) -> Reply:
        """Return prediction and, in place of confidence, uncertainty of each row; raise ValueError."""
        kept: dict[str, Array]
        if self.members:
            features = next(iter(outputs.values()))
            kept = {_FEATURES: features}
        else:
            items = np.array(inputs[ITEM], np.int64).reshape(-1)
            features = self.model.features(items)
            kept = {ITEM: items}
        with self._place.exclusive:
            predicted, spread = self.model.predict(context or "", features)
        answer = Answer(predicted, spread, None)
        query_id = self.ledger.add(now_ns, Answered(context, kept, {}, answer))
        return Reply(query_id, answer, (), (False,) * len(predicted))

    def top_k(
        self,
        now_ns: int,
        items: Items | None,
        k: int,
        generator: np.random.Generator,
        context: str | None,
        then: Callable[[Ranked | ValueError], None],
    ) -> None:
        """Hand on the k best of some items, or of all; or what can't be."""
        if context is not None:
            self._check(context)

        def work() -> Best | ValueError:
            try:
                with self._place.exclusive:
                    return self.model.top_k(context or "", items, k, generator)
            except ValueError as error:
                return error

        def told(found: Best | ValueError) -> None:
            if isinstance(found, ValueError):
                then(found)
                return
            drawn = np.arange(len(found.items)) == found.random
            answer = Answer(found.scores, np.ones(len(found.items)), None)
            kept = {ITEM: found.items, _RANDOM: drawn}
            query_id = self.ledger.add(now_ns, Answered(context, kept, {}, answer))
            then(Ranked(query_id, found, self.model.now.number))

        self.counts["requests"] += 1
        count, d = self.model.items if items is None else len(items), self.model.rank
        cost_ns = count * (10 + d / 2 * (1 + self.model.options.alpha and d / 3))
        self._place.run(cost_ns, work, told)

    def forget(self, context: str) -> bool:
        """Erase a user; return whether there was one."""
        known = bool(self.ledger.forget(context))
        return self.model.forget(context) or known

    def _check_feedback(self, given: Array, answered: Answered | None, *, rewards: bool) -> None:
        if not np.issubdtype(given.dtype, np.number) or not np.isfinite(given).all():
            raise ValueError(
                "feedback of policy 'linear' is a number for each row, and none is NaN or infinity"
            )
        if answered is not None and answered.context is None:
            raise ValueError("policy 'linear' learns about users: the request had no context")

    def _learn(self, now_ns: int, answered: Answered, given: Array, *, rewards: bool) -> None:
        """Learn what items, or features, of an answer were worth to its user."""
        kept, count = answered.inputs, len(given)
        items = kept.get(ITEM, np.full(count, -1))
        features = self.model.features(items) if ITEM in kept else kept[_FEATURES]
        assert answered.context is not None
        self._tell(answered.context, features, items, given, kept.get(_RANDOM, np.zeros(count, bool)))

    def _tell(self, user: str, features: Matrix, items: Items, values: Array, drawn: Array) -> None:
        def work() -> list[float]:
            with self._place.exclusive:
                return [
                    self.model.observe(user, x, float(value), int(item), random=bool(random))
                    for x, item, value, random in zip(features, items, values, drawn, strict=True)
                ]

        def judged(errors: list[float]) -> None:
            count, total = self.losses.get("", (0, 0.0))
            self.losses[""] = count + len(errors), total + sum(each * each for each in errors)

        self._place.run(len(values) * (20_000 + 0.7 * self.model.rank**2), work, judged)
