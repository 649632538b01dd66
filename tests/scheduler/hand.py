"""A scheduler driven by hand, for tests."""

from mainspring.cluster.validate import remember
from mainspring.messages.actions import Command, Infer, Note, Prepare, Reject, Release, Result, Timed, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import (
    Event,
    ModelAdded,
    RequestArrived,
    WorkerJoined,
)
from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, TensorSpec
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler

MS = 1_000_000


def spec(name: str, pages: int = 1, single_ms: int = 4, load_ms: int = 8, version: str = "1") -> ModelSpec:
    infer_ns = {size: single_ms * MS * (1 + size) // 2 for size in (1, 2, 4)}
    tensor = (TensorSpec("x", "float32", (4,)),)
    return ModelSpec(
        name,
        f"{name} version {version}",
        f"graph of {name}",
        (1, 2, 4),
        pages * PAGE_BYTES,
        (1,) * pages,
        tensor,
        tensor,
        {"gpu": Profile(infer_ns, load_ms * MS)},
    )


class Hand:
    """A scheduler driven by hand, whose workers answer only when they are told to."""

    def __init__(self, *specs: ModelSpec, workers: int = 1, pages: int = 8, **config: float) -> None:
        given = {"policy": "clockwork", "idle_loads": True, "pad_batches": True, **config}
        self.scheduler = Scheduler(SchedulerConfig(response_margin_ms=1, **given))  # type: ignore[arg-type]
        remember(self.scheduler.cluster)
        for model in specs:
            self.feed(0, ModelAdded(model))
        for index in range(workers):
            self.prepare(self.feed(0, WorkerJoined(f"w{index}", "gpu", pages)))

    def feed(self, now_ms: float, event: Event) -> list[Command]:
        now_ns = int(now_ms * MS)
        self.scheduler.handle(now_ns, event)
        commands = self.scheduler.schedule(now_ns)
        self.scheduler.validate()
        return [command for command in commands if not isinstance(command, Note)]

    def prepare(self, commands: list[Command], now_ms: float = 0) -> None:
        for action in commands:
            if isinstance(action, Prepare):
                self.prepare(self.ok(now_ms, action))

    def request(
        self, now_ms: float, id_: int, model: str, slo_ms: float | None, rows: int = 1
    ) -> list[Command]:
        deadline_ns = None if slo_ms is None else int((now_ms + slo_ms) * MS)
        return self.feed(now_ms, RequestArrived(id_, model, rows, deadline_ns))

    def end(self, now_ms: float, action: Command, status: Status, detail: str = "") -> list[Command]:
        assert isinstance(action, Timed | Unload | Prepare | Release)
        now_ns = int(now_ms * MS)
        begin_ns = now_ns if not isinstance(action, Timed) else now_ns - action.predicted_duration_ns
        return self.feed(now_ms, Result(action.action_id, action.worker, status, begin_ns, now_ns, 0, detail))

    def ok(self, now_ms: float, action: Command) -> list[Command]:
        return self.end(now_ms, action, Status.OK)

    def warm(self, model: str, now_ms: float = 0) -> None:
        """Load a model and serve one request of it, by ``now_ms`` + 20."""
        (load,) = self.request(now_ms, 1_000_000 + int(now_ms), model, 100)
        commands = self.ok(now_ms + 9, load)
        (infer,) = [c for c in commands if isinstance(c, Infer)]
        self.ok(now_ms + 14, infer)


def reasons(commands: list[Command]) -> list[Reason]:
    return [command.reason for command in commands if isinstance(command, Reject)]
