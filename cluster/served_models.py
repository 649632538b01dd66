"""The models that are served in one line, to be gone through part by part: there may be tens of thousands.

Even to copy references to all of them takes longer than any call should. So there is one list, from which
those that are gone are dropped once they are many, and each walk through the models has a place in it.
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.models import Model

SPARE: Final = 1_024
"""Models that are gone are dropped once they are as many more than half of the line."""


class Walk:
    """A way through the models that were in line when it began, but for those that go meanwhile."""

    __slots__ = ("_line", "end", "place")

    def __init__(self, line: ServedModels) -> None:
        self._line = line
        self.place = 0
        """Number of models of the line that it has passed."""
        self.end = len(line.models)
        """Number of models in the line when it began, with which it ends."""

    def next(self) -> Model | None:
        """Return the next model; None at the end."""
        models, end = self._line.models, self.end
        place = self.place
        while place < end:
            model = models[place]
            place += 1
            if model.device_kinds is not None:
                self.place = place
                return model
        self.place = end
        return None

    def close(self) -> None:
        """End the walk, wherever it is."""
        if self in self._line.walks:
            self._line.walks.remove(self)


class ServedModels:
    """The line, in the order in which the models came."""

    __slots__ = ("_gone", "models", "walks")

    def __init__(self) -> None:
        self.models: list[Model] = []
        """All of them, and some that are gone."""
        self.walks: list[Walk] = []
        """Walks that are not closed."""
        self._gone = 0
        """Number of models in the list that are gone."""

    def __len__(self) -> int:
        """Return the number of models that are served."""
        return len(self.models) - self._gone

    def come(self, model: Model) -> None:
        """Have a model at the end; it is served (`Model.device_kinds`)."""
        self.models.append(model)

    def go(self) -> None:
        """Note that a model is no longer served."""
        self._gone += 1
        if self._gone > len(self.models) // 2 + SPARE:
            self._close_up()

    def walk(self) -> Walk:
        """Begin to go through all models; who does has to close the walk."""
        walk = Walk(self)
        self.walks.append(walk)
        return walk

    def _close_up(self) -> None:
        """Drop the models that are gone."""
        before = [0]
        for model in self.models:
            before.append(before[-1] + (model.device_kinds is not None))
        for walk in self.walks:
            walk.place, walk.end = before[walk.place], before[walk.end]
        self.models = [model for model in self.models if model.device_kinds is not None]
        self._gone = 0
