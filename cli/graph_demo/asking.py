"""Two ways to ask for what a graph answers: the graph itself, or its steps one after the other."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from mainspring.cli.graph_demo.material import digits
from mainspring.client.asynchronous import AsyncClient
from mainspring.messages.model import ModelSpec

UNSURE: Final = 0.9
"""Probability below which the small model of digits is not sure, as in graphs/read-digit.toml."""
PAGES: Final = 64
MOST_LINES: Final = 6
_WORDS: Final = "every request has one deadline and the answer comes before it or a refusal at once".split()  # noqa: SIM905


class Answer(NamedTuple):
    """The answer to a request."""

    executed: Counter[str]
    """Rows that each model ran for it."""
    right: bool


class Question(Protocol):
    """A kind of request that a graph and a client of its own can answer."""

    graph: str
    slo_ms: float

    @abstractmethod
    def cost_ns(self, specs: Mapping[str, ModelSpec]) -> dict[str, float]:
        """Return the mean time that each model takes for one request, in the order of the steps."""

    @abstractmethod
    async def of_graph(self, client: AsyncClient, number: int) -> Answer:
        """Ask the graph; raise `MainspringError`."""

    @abstractmethod
    async def by_steps(self, client: AsyncClient, number: int, shares: Mapping[str, float]) -> Answer:
        """Ask for one step after the other, each with its share of the SLO; raise `MainspringError`."""


class ReadText:
    """Pages of one to six lines, which `read-text` reads."""

    graph = "read-text"
    slo_ms = 1_000.0

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._texts = [_lines(random) for _ in range(PAGES)]
        self._pages = [_page(lines) for lines in self._texts]

    def cost_ns(self, specs: Mapping[str, ModelSpec]) -> dict[str, float]:
        """See `Question.cost_ns`; lines are counted at the price of single ones."""
        lines = float(np.mean([len(each) for each in self._texts]))
        times = {
            "open-page": 1.0,
            "detect-text": 1.0,
            "find-lines": 1.0,
            "recognise-line": lines,
            "spell": lines,
        }
        return {model: rows * specs[model].profiles["cpu"].infer_ns[1] for model, rows in times.items()}

    async def of_graph(self, client: AsyncClient, number: int) -> Answer:
        """See `Question.of_graph`."""
        result = await client.infer(self.graph, {"page": self._page(number)}, slo=f"{self.slo_ms}ms")
        return self._answer(number, result["text"])

    async def by_steps(self, client: AsyncClient, number: int, shares: Mapping[str, float]) -> Answer:
        """See `Question.by_steps`."""

        async def step(model: str, inputs: dict[str, Any]) -> Any:
            return await client.infer(model, inputs, slo=f"{self.slo_ms * shares[model]:.3f}ms")

        data = (await step("open-page", {"page": self._page(number)}))["data"]
        seen = (await step("detect-text", {"x": data}))["sigmoid_0.tmp_0"]
        lines = (await step("find-lines", {"data": data[0], "seen": seen[0]}))["lines"]
        if not len(lines):
            return self._answer(number, [])
        scores = (await step("recognise-line", {"x": lines}))["softmax_11.tmp_0"]
        return self._answer(number, (await step("spell", {"scores": scores}))["text"])

    def _page(self, number: int) -> npt.NDArray[Any]:
        return np.array([self._pages[number % PAGES]])

    def _answer(self, number: int, texts: Sequence[bytes] | npt.NDArray[Any]) -> Answer:
        read, count = [bytes(text).decode().replace(" ", "") for text in texts], len(texts)
        executed = {
            "open-page": 1,
            "detect-text": 1,
            "find-lines": 1,
            "recognise-line": count,
            "spell": count,
        }
        wanted = [line.replace(" ", "") for line in self._texts[number % PAGES]]
        return Answer(Counter(executed), read == wanted)


class ReadDigit:
    """Digits, which `read-digit` reads: a cascade of a small model and a large one."""

    graph = "read-digit"
    slo_ms = 200.0

    def __init__(self) -> None:
        self._digits = digits(held_out=True)
        self.unsure = np.zeros(len(self._digits.labels), bool)
        """Digits of which the small model is not sure; known once `look` has asked it."""

    async def look(self, client: AsyncClient) -> None:
        """Ask the small model about every digit, so that it is known which ones the large model sees."""
        for number in range(len(self.unsure)):
            result = await client.infer("digits-fast", {"X": self._image(number)})
            self.unsure[number] = result["probabilities"].max() < UNSURE

    def cost_ns(self, specs: Mapping[str, ModelSpec]) -> dict[str, float]:
        """See `Question.cost_ns`."""
        rows = {"digits-fast": 1.0, "digits-slow": float(self.unsure.mean())}
        return {model: share * specs[model].profiles["cpu"].infer_ns[1] for model, share in rows.items()}

    async def of_graph(self, client: AsyncClient, number: int) -> Answer:
        """See `Question.of_graph`."""
        result = await client.infer(self.graph, {"image": self._image(number)}, slo=f"{self.slo_ms}ms")
        return self._answer(number, result["label"])

    async def by_steps(self, client: AsyncClient, number: int, shares: Mapping[str, float]) -> Answer:
        """See `Question.by_steps`."""
        inputs = {"X": self._image(number)}
        slos = {model: f"{self.slo_ms * share:.3f}ms" for model, share in shares.items()}
        result = await client.infer("digits-fast", inputs, slo=slos["digits-fast"])
        if result["probabilities"].max() < UNSURE:
            result = await client.infer("digits-slow", inputs, slo=slos["digits-slow"])
        return self._answer(number, result["label"])

    def _image(self, number: int) -> npt.NDArray[np.float32]:
        at = number % len(self._digits.labels)
        return self._digits.images[at : at + 1]

    def _answer(self, number: int, label: npt.NDArray[np.int64]) -> Answer:
        at = number % len(self._digits.labels)
        executed = {"digits-fast": 1, "digits-slow": int(self.unsure[at])}
        return Answer(Counter(executed), int(label[0]) == int(self._digits.labels[at]))


def _lines(random: np.random.Generator) -> list[str]:
    count = int(random.integers(1, MOST_LINES + 1))
    return [
        f"{random.choice(_WORDS)} {random.choice(_WORDS)} {random.integers(10, 1000)}" for _ in range(count)
    ]


def _page(lines: Sequence[str]) -> bytes:
    picture = Image.new("RGB", (320, 192), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size=17)
    for number, line in enumerate(lines):
        draw.text((12, 6 + 31 * number), line, "black", font)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
