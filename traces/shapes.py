"""Sizes of open dimensions in a workload, drawn for each request; and the capacity that is a load of 1.

A distribution is a text: ``128`` is that size; ``12,30,30,64`` each of these as often; ``1-128`` all of these
evenly; ``26~0.7`` a median of 26, the logarithm having a standard deviation of 0.7, as lengths of sentences
do; ``@lengths.txt`` the numbers of a file, each as often. What is drawn is cut to what a model takes.

A load of 1 is the *fluid* capacity: what the devices do if every batch is full and of its best size, memory
is no bound, and nothing waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist, fmean

import msgspec
import numpy as np

from mainspring.messages.model import ModelSpec, Symbol
from mainspring.traces.arrival import Arrival, WorkloadError
from mainspring.traces.source import Playable, Source

PARTS = 400
"""Number of parts that a distribution is cut into, for the mean of a batch's duration."""

MOST_SIZE = 1 << 31
"""Largest size that may be asked for; no tensor has as much along one axis."""
MOST_DEVIATION = 10.0
"""Largest deviation of a size's logarithm."""


def best_request_ns(infer_ns: Mapping[int, float], slo_ns: float | None, rows: int = 1) -> float:
    """Return the least time that a request of ``rows`` rows takes of a device, in nanoseconds.

    In the best of the batches that end within the SLO; if none does, in the smallest that holds it.
    ``infer_ns`` has durations by batch size. A request larger than all batches takes as long as the largest.
    """
    able = {size: duration_ns for size, duration_ns in infer_ns.items() if size >= rows}
    if not able:
        return float(infer_ns[max(infer_ns)])
    smallest = min(able)
    return min(
        duration_ns / (size // rows)
        for size, duration_ns in able.items()
        if size == smallest or slo_ns is None or duration_ns <= slo_ns
    )


def device_s(request_ns: Mapping[str, float], devices: Mapping[str, int]) -> float:
    """Return which part of all devices' time a request takes, in seconds.

    ``request_ns`` says what it takes of each kind of device (`best_request_ns`), ``devices`` how many there
    are of each.
    """
    return 1 / sum(1e9 * count / request_ns[kind] for kind, count in devices.items())


def slowest_of(requests: int, sigma: float) -> float:
    """Return the mean of the largest of several multiples whose logarithms are normal around 0."""
    normal = NormalDist(0.0, sigma)
    ranks = [((part + 0.5) / PARTS) ** (1 / requests) for part in range(PARTS)]
    return fmean(math.exp(normal.inv_cdf(rank)) for rank in ranks)


Distribution = Callable[[np.random.Generator], float]
_FORMS = "128; 12,30,64; 1-128; 26~0.7 (a median and the deviation of the logarithm); or @lengths.txt"


def parse_distribution(text: str) -> Distribution:
    """Return what draws a size; raise `WorkloadError` for a text that is no distribution."""
    try:
        if text.startswith("@"):
            return _one_of([float(word) for word in Path(text[1:]).read_text(encoding="utf-8").split()])
        if "~" in text:
            median, deviation = map(float, text.split("~"))
            return _lognormal(median, deviation)
        if "-" in text:
            least, most = map(int, text.split("-"))
            return _evenly(least, most)
        return _one_of([float(word) for word in text.split(",")])
    except OSError as error:
        raise WorkloadError(f"the sizes in {text[1:]} can't be read: {error.strerror}") from None
    except ValueError:
        raise WorkloadError(f"sizes {text!r} are none of: {_FORMS}") from None


def parse_shapes(texts: Iterable[str]) -> dict[str, str]:
    """Return the distributions in texts such as ``seq=1-128``, by symbol; raise `WorkloadError`."""
    shapes: dict[str, str] = {}
    for text in texts:
        name, _, distribution = text.partition("=")
        if not name or name in shapes:
            raise WorkloadError(f"{text!r} is no new dimension and its sizes, such as seq=1-128")
        parse_distribution(distribution)
        shapes[name] = distribution
    return shapes


def _one_of(values: Sequence[float]) -> Distribution:
    if not values or not all(1 <= each <= MOST_SIZE for each in values):
        raise ValueError("sizes are from 1 on")
    return lambda rng: values[int(rng.integers(len(values)))]


def _evenly(least: int, most: int) -> Distribution:
    if not 1 <= least <= most <= MOST_SIZE:
        raise ValueError("the smallest size comes first")
    return lambda rng: int(rng.integers(least, most + 1))


def _lognormal(median: float, deviation: float) -> Distribution:
    if not (1 <= median <= MOST_SIZE and 0 <= deviation <= MOST_DEVIATION):
        raise ValueError("a median from 1 on, and a deviation from 0 on")
    return lambda rng: median * math.exp(deviation * float(rng.standard_normal()))


def with_shapes(workload: Playable, models: Iterable[ModelSpec], shapes: Mapping[str, str]) -> Playable:
    """Return the workload with sizes for requests to models with symbols: those without one get the limit.

    Raises `WorkloadError` for a distribution that can't be, or of a symbol that no model has.
    """
    symbols = {model.name: model.symbols for model in models if model.symbols}
    known = sorted({symbol.name for each in symbols.values() for symbol in each})
    for name in shapes:
        if name not in known:
            raise WorkloadError(
                f"no model of the workload has an open dimension {name!r}; there is "
                f"{', '.join(known) or 'none'}"
            )
    drawn = {name: parse_distribution(text) for name, text in shapes.items()}
    return _Shaped(workload, symbols, drawn) if symbols else workload


def drawn_sizes(model: ModelSpec, shapes: Mapping[str, str], count: int) -> list[tuple[int, ...]]:
    """Return the sizes of some requests to a model with symbols, the same each time.

    Raises `WorkloadError` for a distribution that can't be.
    """
    drawn = {name: parse_distribution(text) for name, text in shapes.items()}
    rng = np.random.default_rng(0)
    return [tuple([_size(symbol, drawn, rng) for symbol in model.symbols]) for _ in range(count)]


def _size(symbol: Symbol, drawn: Mapping[str, Distribution], rng: np.random.Generator) -> int:
    """Draw a size that a model takes."""
    distribution = drawn.get(symbol.name)
    size = symbol.limit if distribution is None else round(distribution(rng))
    size = min(max(size, symbol.least), symbol.limit)
    return size - (size - symbol.least) % symbol.step


class _Shaped:
    """A workload whose requests have sizes."""

    def __init__(
        self,
        workload: Playable,
        symbols: Mapping[str, tuple[Symbol, ...]],
        drawn: Mapping[str, Distribution],
    ) -> None:
        self._workload = workload
        self._symbols = symbols
        self._drawn = drawn

    @property
    def models(self) -> tuple[str, ...]:
        """Same as `Playable.models`."""
        return self._workload.models

    def source(self, rng: np.random.Generator) -> Source:
        """Same as `Playable.source`; sizes have a generator of their own, so that arrivals are as without."""
        (sizes,) = rng.spawn(1)
        return _ShapedSource(self._workload.source(rng), self._symbols, self._drawn, sizes)


class _ShapedSource:
    def __init__(
        self,
        source: Source,
        symbols: Mapping[str, tuple[Symbol, ...]],
        drawn: Mapping[str, Distribution],
        rng: np.random.Generator,
    ) -> None:
        self._source = source
        self._symbols = symbols
        self._drawn = drawn
        self._rng = rng
        self.next_ns = source.next_ns
        self.completed = source.completed
        self.done = source.done

    def take(self) -> Arrival:
        """Same as `Source.take`."""
        arrival = self._source.take()
        symbols = self._symbols.get(arrival.model)
        if symbols is None or arrival.sizes:
            return arrival
        sizes = tuple([_size(symbol, self._drawn, self._rng) for symbol in symbols])
        return msgspec.structs.replace(arrival, sizes=sizes)
