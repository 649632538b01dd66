"""What a worker holds: its prepared models, their pages, and which of them may not be given up now. Pure."""

from __future__ import annotations

from mainspring.messages.actions import Infer, Load, Prepare
from mainspring.messages.codes import Status
from mainspring.messages.events import Resident
from mainspring.messages.model import Artifact, ModelSpec
from mainspring.worker.admission import Ending, PreparedModel
from mainspring.worker.pages import PageTable


class Holdings:
    """Prepared models and the page table; a model with outstanding actions is *pinned*."""

    def __init__(self, pages: int, page_bytes: int, io_bytes: int) -> None:
        """``io_bytes``: the IO memory in which a batch of any of its models must find room."""
        self.pages = PageTable(pages)
        self.page_bytes = page_bytes
        self.io_bytes = io_bytes
        self._prepared: dict[str, PreparedModel] = {}
        self._pins: dict[str, int] = {}

    def find(self, name: str) -> PreparedModel | None:
        """A prepared model, or None."""
        return self._prepared.get(name)

    def is_resident(self, name: str) -> bool:
        """Whether the model's weights are all in its pages."""
        return self.pages.resident_pages(name) is not None

    def add(self, model: ModelSpec) -> None:
        """Count the model as prepared; raise `ValueError` if no worker could run it."""
        self._prepared[model.name] = PreparedModel(model, self.page_bytes)

    def pin(self, name: str) -> None:
        """One more action on the model is outstanding."""
        self._pins[name] = self._pins.get(name, 0) + 1

    def unpin(self, name: str) -> None:
        """One action on the model is outstanding no more."""
        left = self._pins[name] - 1
        if left:
            self._pins[name] = left
        else:
            del self._pins[name]

    def unload(self, name: str) -> Ending:
        """Give a resident model's pages up, unless it is pinned."""
        if name in self._pins:
            return Status.BUSY, f"{self._pins[name]} actions on {name} are outstanding"
        if not self.is_resident(name):
            return Status.NOT_RESIDENT, f"model {name} is not resident"
        self.pages.give_up(name)
        return Status.OK, ""

    def release(self, name: str) -> Ending:
        """Forget a prepared model, unless it is pinned or resident."""
        if name in self._pins:
            return Status.BUSY, f"{self._pins[name]} actions on {name} are outstanding"
        if self.is_resident(name):
            return Status.BUSY, f"model {name} is resident: unload it first"
        if self._prepared.pop(name, None) is None:
            return Status.NOT_PREPARED, f"model {name} is not prepared"
        return Status.OK, ""

    def obstacle(self, action: Infer | Load | Prepare) -> Ending | None:
        """How a Load or a Prepare ends instead of beginning at this moment, or None."""
        if isinstance(action, Infer):
            return None
        if isinstance(action, Load):
            if self.is_resident(action.model):
                return Status.BAD_ACTION, f"model {action.model} is resident already: unload it first"
            occupied = self.pages.occupied(action.pages)
            return (Status.BAD_PAGES, occupied) if occupied else None
        return self._prepare_obstacle(action.model)

    def resident(self) -> tuple[Resident, ...]:
        """What the pages hold, in the order in which it was loaded."""
        return tuple(
            Resident(name, self._prepared[name].model.artifact, pages)
            for name, pages in self.pages.residents()
        )

    def prepared(self) -> dict[str, Artifact]:
        """What is prepared of each model, by name."""
        return {name: prepared.model.artifact for name, prepared in self._prepared.items()}

    def validate(self, pins: dict[str, int]) -> None:
        """Raise `AssertionError` unless pages have owners as they should and ``pins`` is what is pinned."""
        self.pages.validate()
        assert pins == self._pins, f"outstanding by model is {pins}, pinned are {self._pins}"
        for name, _ in self.pages.residents():
            assert name in self._prepared, f"{name} is resident and not prepared"
        for name in self.pages.loading():
            assert name in self._prepared, f"{name} is loading and not prepared"

    def _prepare_obstacle(self, model: ModelSpec) -> Ending | None:
        prepared = self._prepared.get(model.name)
        if prepared is None:
            try:
                layouts = PreparedModel(model, self.page_bytes).layouts
            except ValueError as error:
                return Status.BAD_ACTION, f"model {model.name}: {error}"
            largest = max(layouts)
            size = layouts[largest].size
            if size > self.io_bytes:
                return Status.NO_IO_MEMORY, (
                    f"inputs and outputs of a batch of {largest} of {model.name} have {size:,} bytes, the "
                    f"worker's io_bytes is {self.io_bytes:,}: set it higher, or compile the model with "
                    "smaller --batch-sizes"
                )
            return None
        if prepared.same_artifact(model):
            return Status.OK, "prepared already"
        return Status.BUSY, f"{model.name} is prepared with another artifact: release it first"
