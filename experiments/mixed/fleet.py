"""The models of the mixed cluster, and requests for them with the answers of ONNX Runtime on the file.

Six have fixed shapes, six lengths, two take a time that follows from values, and one carries a state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.sizes.sample_forms import NOTHING, described
from mainspring.compiler.zoo import build
from mainspring.experiments.bench import minilm
from mainspring.experiments.bench.foreign import Unavailable
from mainspring.experiments.wild.files import light
from mainspring.experiments.wild.graphs import SHAPED
from mainspring.experiments.wild.operators import VALUED
from mainspring.experiments.wild.reference import Arrays, Reference, compare
from mainspring.messages.model import ModelSpec, TensorSpec
from tests.made_models import Made, save

FIXED, LENGTHS, ERRATIC, STREAM = "fixed", "lengths", "erratic", "stream"
"""Kinds of models."""
STATE = ("h", "h_out")
"""The stream's state: the input, and the output that it is taken from."""
QUESTIONS = 24
"""Different requests of a model; they come in turn and over again."""
LONGEST = 128
_FEATURES, _HIDDEN = 40, 32

_STREAM = Made(
    "stream",
    f"""g (float[N,{_FEATURES}] x, float[N,{_HIDDEN}] h) => (float[N,4] y, float[N,{_HIDDEN}] h_out) {{
        a = MatMul(x, w) b = MatMul(h, r) s = Add(a, b) h_out = Tanh(s) y = MatMul(h_out, v)
    }}""",
    # The state's weights are small: a net whose state forgets nothing would blow up differences in rounding.
    {
        "w": (_FEATURES, _HIDDEN),
        "r": (np.random.default_rng(3).standard_normal((_HIDDEN, _HIDDEN)) * 0.1).astype(np.float32),
        "v": (_HIDDEN, 4),
    },
)
_LONG_TAILED = Made(
    "long-tailed",
    """g (float[64,64] x) => (float[64,64] y) {
        most = ReduceMax<keepdims=0>(x) steps = Cast<to=7>(most) n = Clip(x, low, high)
        y = Loop(steps, go, n) <body = b (int64 i, bool c, float[64,64] h) => (bool o, float[64,64] r) {
            o = Identity(c) m = MatMul(h, w) r = Tanh(m) }>
    }""",
    {"w": (64, 64), "go": np.array(True), "low": np.float32(-1), "high": np.float32(1)},
)
_MOST_STEPS = 400


class Source(NamedTuple):
    """A model to be served, and how requests for it are drawn."""

    name: str
    kind: str
    file: Path
    below: Mapping[str, int] = {}
    values: Mapping[str, tuple[int, ...]] = {}
    """Integers to choose from, by input."""
    draw: Callable[[np.random.Generator], Arrays] | None = None
    """Draws a request's inputs, where shapes and limits don't say enough."""


class Question(NamedTuple):
    """One request's inputs, and the right answer."""

    inputs: Arrays
    expected: Arrays
    """Empty for the stream, where it depends on what came before."""


class Subject(msgspec.Struct, frozen=True):
    """A served model and its requests."""

    name: str
    kind: str
    file: Path
    spec: ModelSpec
    questions: list[Question]


def sources(folder: Path, say: Callable[[str], None], *, small: bool = False) -> list[Source]:
    """Write and return the models; ``small`` takes made ones only, which compile in seconds."""
    made = {each.name: each for each in (*SHAPED, *VALUED, _STREAM, _LONG_TAILED)}

    def own(name: str, kind: str, **more: Any) -> Source:
        path = folder / "files" / name / "model.onnx"
        save(made[name], path)
        return Source(name, kind, path, **more)

    fixed = [own(name, FIXED) for name in ("open-batch", "fixed-batch-mixing")]
    lengths = [
        own("sequence-tokens", LENGTHS, below={"ids": 50}),
        own("sequence-pairs", LENGTHS),
        own("sequence-pooled", LENGTHS, below={"ids": 100}),
        own("image-size", LENGTHS),
        own("samples", LENGTHS),
    ]
    if small:
        fixed += [own(name, FIXED) for name in ("fixed-batch", "float16", "weights-of-8-bits", "time-first")]
    else:
        fixed += _networks(folder)
    lengths.append(own("one-open-axis", LENGTHS) if small else _minilm(own, say))
    erratic = [
        own("loop-erratic", ERRATIC, values={"steps": (1, 1, 1, _MOST_STEPS)}),
        own("long-tailed", ERRATIC, draw=_draw_long_tailed),
    ]
    return [*fixed, *lengths, *erratic, own("stream", STREAM)]


def _networks(folder: Path) -> list[Source]:
    found = []
    for name, seed in (("digits", 1), ("resnet20", 1)):
        path = folder / "files" / f"{name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(build(name, seed), path)
        found.append(Source(name, FIXED, path))
    wanted = ("light-shufflenet", "light-squeezenet")
    return found + [Source(each.name, FIXED, each.path) for each in light() if each.name in wanted]


def _minilm(own: Callable[..., Source], say: Callable[[str], None]) -> Source:
    try:
        file = minilm.model_file()
    except Unavailable as why:
        say(f"MiniLM can't be had, a made model takes its place: {why}")
        return own("one-open-axis", LENGTHS)

    def draw(random: np.random.Generator) -> Arrays:
        (ids,) = minilm.drawn(1, seed=int(random.integers(1 << 30)))
        return dict(minilm.tensors(ids))

    return Source("minilm", LENGTHS, file, draw=draw)


def _draw_long_tailed(random: np.random.Generator) -> Arrays:
    x = random.uniform(-1, 1, (64, 64)).astype(np.float32)
    x[0, 0] = min(_MOST_STEPS, random.lognormal(3.0, 1.5))
    return {"x": x}


def compiled(each: Source, store: Store, folder: Path) -> Subject:
    """Compile a model as it lies into ``store``; return it with its requests."""
    states = described(None, ["=".join(STATE)]) if each.kind == STREAM else NOTHING
    spec = compile_file(each.file, each.name, store, described=states).manifest.spec()
    random = np.random.default_rng(20201104)
    elsewhere = {tensor.name: tensor.rows_axis for tensor in (*spec.inputs, *spec.outputs)}
    reference = Reference(each.file, folder, elsewhere)
    questions = []
    answer: Arrays
    for _ in range(QUESTIONS):
        inputs = each.draw(random) if each.draw else drawn(each, spec, random)
        if each.kind == STREAM:
            answer = {}
        else:
            answer = reference.run(inputs) if spec.whole else reference.run_rows(inputs, 1)
        questions.append(Question(inputs, answer))
    return Subject(each.name, each.kind, each.file, spec, questions)


def drawn(each: Source, spec: ModelSpec, random: np.random.Generator) -> Arrays:
    """Return a request of one row with sizes of its own, of at most `LONGEST` where the model takes those."""
    sizes = tuple(
        symbol.least
        + symbol.step
        * int(
            random.integers((max(symbol.least, min(symbol.limit, LONGEST)) - symbol.least) // symbol.step + 1)
        )
        for symbol in spec.symbols
    )
    kept = () if spec.sequencing is None else spec.sequencing.kept_inputs
    return {
        tensor.name: _values(each, tensor, spec.client_shape(tensor.at(sizes), 1), random)
        for tensor in spec.inputs
        if tensor.name not in kept
    }


def _values(each: Source, tensor: TensorSpec, shape: tuple[int, ...], random: np.random.Generator) -> Any:
    dtype = np.dtype(tensor.dtype)
    if tensor.name in each.values:
        return np.asarray(random.choice(each.values[tensor.name], shape), dtype)
    if dtype.kind == "f":
        return np.asarray(random.standard_normal(shape), dtype)
    return np.asarray(random.integers(0, each.below.get(tensor.name, 2), shape), dtype)


class Step(msgspec.Struct):
    """One request of a stream, in the order of sending."""

    inputs: Arrays
    start: bool
    sent_s: float
    answer: Arrays | None = None


class Stream:
    """One client's sequence. Nothing waits for an answer but its beginning."""

    def __init__(self, number: int) -> None:
        self.sequence_id = f"stream-{number}"
        self.steps: list[Step] = []
        self.forgotten = 0
        self._begun = False
        self._starting: Step | None = None

    @property
    def ready(self) -> bool:
        """True if the next request can be sent: not while it is unknown whether the sequence has begun."""
        return self._starting is None

    def step(self, inputs: Arrays, sent_s: float) -> Step:
        """Note the next request, and return it."""
        step = Step(inputs, not self._begun, sent_s)
        if step.start:
            self._starting = step
        self.steps.append(step)
        return step

    def answered(self, step: Step, answer: Arrays) -> None:
        """Note an answer."""
        step.answer = answer
        if step is self._starting:
            self._begun, self._starting = True, None

    def refused(self, step: Step, *, unknown: bool) -> None:
        """Note that a request got none; ``unknown``: because the gateway does not know the sequence."""
        if step is self._starting:
            self._starting = None
        elif unknown and self._begun:
            self.forgotten += 1
            self._begun = False


class Judged(NamedTuple):
    """Outcomes of the streams."""

    wrong: int
    """Answers that are not of the state that the stream should have."""
    first_problem: str
    forgotten: int
    went_on: int
    """Streams that were answered before the worker was killed and after it, without a new beginning."""


def judge(streams: list[Stream], file: Path, folder: Path, killed_s: float) -> Judged:
    """Compare all answers with ONNX Runtime in a loop that carries the state."""
    reference = Reference(file, folder)
    fed, taken = STATE
    shape = [each if isinstance(each, int) else 1 for each in _declared(reference, fed)]
    wrong, problem, went_on = 0, "", 0
    for stream in streams:
        state: Any = np.zeros(shape, np.float32)
        before = after = False
        for place, step in enumerate(stream.steps):
            if step.answer is None:
                continue
            if step.start:
                state, before, after = np.zeros(shape, np.float32), False, False
            right = reference.run({**step.inputs, fed: state})
            state = right.pop(taken)
            found = compare(step.answer, right)
            if not found.same:
                wrong += 1
                problem = problem or f"{stream.sequence_id}, request {place}: {found.problem}"
            before |= step.sent_s < killed_s
            after |= step.sent_s >= killed_s
        went_on += before and after
    return Judged(wrong, problem, sum(stream.forgotten for stream in streams), went_on)


def _declared(reference: Reference, name: str) -> list[int | str | None]:
    return next(each.dims for each in reference.inputs if each.name == name)
