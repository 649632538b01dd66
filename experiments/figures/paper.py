"""The Clockwork paper's statements on its experiments: numbers as data, each with where it stands.

Only the text's numbers are here, none that would have to be read off a plot; where the text itself says
"approximately" or "nearly", the fact is marked so.
"""

from __future__ import annotations

import msgspec

MILLISECOND_NS = 1_000_000

# Set-ups.

FIGURE5_SLOS_MS = (10.0, 25.0, 50.0, 100.0, 250.0, 500.0)
"""Section 6.1 names the ends; the steps between are those of the experiment in the paper's artifact."""
FIGURE5_MODELS, FIGURE5_CONCURRENCY = 15, 16

FIGURE6_MODELS, FIGURE6_STEP_S = 3_600, 1.0
FIGURE6_MAJOR_RATE, FIGURE6_MINOR_RATE = 1_000.0, 200.0
FIGURE6_LEAD_S = 15 * 60.0
FIGURE6_SLO_MS = 100.0
FIGURE6_PAGES = 1_376

FIGURE7_BASE_MS = 2.9
"""One execution of ResNet-50 at batch 1 (section 6.3)."""
FIGURE7_STEP, FIGURE7_STAGES = 1.5, 12
"""2.9 ms x 1.5^11 = 251 ms: "by the end of the experiment the SLO reaches 250ms"."""
FIGURE7_STAGE_S = 30.0
FIGURE7_DEVICES = 6
FIGURE7_MODELS = (12, 48)
FIGURE7_RATES = (600.0, 1_200.0, 2_400.0)
FIGURE7_SENSITIVE, FIGURE7_SENSITIVE_RATE = 6, 200.0
FIGURE7_BATCH_CLIENTS = ((0, 0), (12, 16), (48, 4))
"""Batch clients and the requests that each keeps in flight (section 6.4, a to c)."""

AZURE_MACHINES, GPUS_A_MACHINE, AZURE_COPIES = 6, 2, 66
AZURE_FUNCTIONS = 17_000
AZURE_RATE = 4_860.6
AZURE_LENGTH_S = 8 * 3600.0
AZURE_SLO_MS = 100.0
SCALE_DEVICES, SCALE_RATE, SCALE_LENGTH_S = 20, 6_174.0, 3_600.0
SCALE_SLOS_MS = (100.0, 25.0)
EMULATED_DEVICES = tuple(range(10, 151, 10))
"""The scalability run of the paper's artifact, on emulated devices."""

DEVICE_PAGES = 1_984

RESNET50_ROW = "ResNet v2,resnet50_v2,602,4,102.2,8.32,2.73,4.05,5.87,9.93,17.3"


class Fact(msgspec.Struct, frozen=True):
    """One number of the paper."""

    value: float
    unit: str
    where: str
    """Section or figure."""
    approximate: bool = False

    def text(self) -> str:
        """Return it as a cell of a table."""
        return f"{'~' if self.approximate else ''}{self.value:,g} {self.unit}".rstrip()


FIGURE5 = {
    "goodput at 500 ms": Fact(800, "r/s", "section 6.1", approximate=True),
    "longest latency at 500 ms": Fact(300, "ms", "section 6.1", approximate=True),
}
FIGURE6 = {
    "minor goodput before": Fact(200, "r/s", "section 6.2"),
    "EXEC busy in the first 3 minutes": Fact(100, "%", "section 6.2"),
    "models that fill memory": Fact(201, "models", "section 6.2"),
    "LOAD busy after that": Fact(100, "%", "section 6.2", approximate=True),
    "cold starts at the end": Fact(100, "%", "section 6.2", approximate=True),
    "minor goodput at the end": Fact(200, "r/s", "section 6.2"),
    "minor mean latency at the end": Fact(20, "ms", "section 6.2", approximate=True),
    "longest latency": Fact(100, "ms", "figure 6 (b)"),
}
FIGURE7_LEFT = {
    600.0: Fact(3.4, "x", "section 6.3"),
    1_200.0: Fact(7.6, "x", "section 6.3"),
    2_400.0: Fact(25.6, "x", "section 6.3"),
}
"""The SLO multiplier from which on a rate was satisfied."""
FIGURE7_RIGHT = Fact(11.4, "x", "section 6.4")
"""Below it many latency-sensitive requests were rejected."""
FIGURE8 = {
    "offered": Fact(4_860.6, "r/s", "section 6.5"),
    "goodput": Fact(4_860.5, "r/s", "section 6.5"),
    "not in time": Fact(4_511 / 140e6 * 1e6, "per million", "section 6.5"),
    "models with a cold start a minute": Fact(2_190, "models", "section 6.5"),
    "share of models with one": Fact(54, "%", "section 6.5", approximate=True),
    "cold requests": Fact(178, "r/s", "section 6.5"),
    "share of cold requests": Fact(3.7, "%", "section 6.5"),
    "longest latency": Fact(100, "ms", "section 6.5"),
}
TABLE65 = {
    100.0: {
        "goodput": Fact(6_174, "r/s", "section 6.5, table"),
        "in time": Fact(100.0, "%", "section 6.5, table"),
        "late": Fact(0, "requests", "section 6.5, table"),
        "p50": Fact(6.28, "ms", "section 6.5, table"),
        "p99.99": Fact(49.92, "ms", "section 6.5, table"),
    },
    25.0: {
        "goodput": Fact(6_060, "r/s", "section 6.5, table"),
        "in time": Fact(98.2, "%", "section 6.5"),
        "late": Fact(361, "requests", "section 6.5, table"),
        "p50": Fact(5.77, "ms", "section 6.5, table"),
        "p99.99": Fact(21.60, "ms", "section 6.5, table"),
    },
}
FIGURE9 = {
    "INFER duration, over": Fact(250, "us", "section 6.5"),
    "INFER duration, under": Fact(250, "us", "section 6.5"),
    "LOAD duration, over": Fact(338, "us", "section 6.5"),
    "LOAD duration, under": Fact(240, "us", "section 6.5"),
    "INFER completion, under": Fact(1_000, "us", "section 6.5", approximate=True),
}
"""99th percentiles."""

INDEPENDENT_FIGURE5 = {10.0: 415.0, 25.0: 749.0, 50.0: 803.0, 100.0: 823.0, 250.0: 908.0, 500.0: 925.0}
"""Goodput of appendix B's policy, in requests/s by SLO in ms, with the profile of resnet50_v2 in an
independent simulation, in another language, of the same experiment: a check, not a number of the paper."""
