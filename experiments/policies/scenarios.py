"""The scenarios in which policies are compared: devices, models, how the models are asked for.

A to H are those of an independent study of seven policies, whose figures are in docs/policy-results.md
beside ours. The others test what those leave out, so that nothing is tuned to eight lists of numbers.
"""

from __future__ import annotations

import math

import msgspec
import typer

from mainspring.simulator.spec import Spread

RESNET = ("resnet50_v2",)
FAST = ("resnet18_v1", "resnet18_v2", "mobile_pose_resnet18_v1", "cifar_wideresnet16_10")
SLOW = ("resnet152_v1", "resnet152_v2", "resnest101", "densenet161")
PAGES = 1_984
"""Pages of 16 MB on a device of 32 GB, less 512 MB each for workspace and IO (Clockwork, section 5.2)."""
WAVE_S = 2.0
USUAL = "gpu"
"""The kind of device that is as fast as the table says."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Models that are asked for in the same way."""

    varieties: tuple[str, ...] = ()
    """Rows of the table of profiles; none means all of them."""
    copies: int = 1
    """Models of each variety."""
    slo_ms: float | None = 100.0
    """None for requests without a deadline."""
    rows: int = 1
    """Rows of each request."""
    weight: float = 1.0
    """Requests for each of these models, relative to other models'."""
    cv: float = 1.0
    """Coefficient of variation of the gaps between a model's requests; 1 is a Poisson process."""
    pareto: float = 0.0
    """Shape of Pareto-distributed gaps, in the place of others, if it is greater than 1."""
    mix: tuple[tuple[float, int], ...] = ()
    """SLO in ms and rows of a model's requests, each as often as the others, where not all are alike."""
    factor: float = 1.0
    """Durations of executions of a variety's models, by those of the table."""
    wave: float = 0.0
    """The part by which rates swing, up and down within `WAVE_S`."""
    goodput_weight: float = 1.0
    """Number of other models' answers that one counts as."""
    apart: bool = False
    """True if its share in time is told by itself, as it is where answers count as more than one."""
    crowd: float = 1.0
    """Factor on the rates in the middle tenth of what is played."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster with its models."""

    name: str
    title: str
    groups: tuple[Group, ...]
    devices: dict[str, int]
    """Number of devices, by kind."""
    slowness: dict[str, float] = {}
    """Factor on every execution's duration by kind, if it is not 1."""
    pages: int = PAGES
    """Pages of each device."""
    zipf: float = 0.0
    """Exponent of the skew of rates over all models with a deadline."""
    best_effort: float = 0.0
    """Rate of requests without a deadline, as a part of the capacity for those with one, at every load."""
    spreads: tuple[Spread, ...] = ()
    """Models whose durations vary, whatever the inputs' shapes; by their varieties' names."""
    seed: int = 1
    """Seed of the models that are asked for most, at skewed rates; its arrivals are others' than those of a
    scenario with another seed."""
    listed: bool = False
    """True if it is one of the study's."""


def _study(name: str, devices: int, title: str, group: Group) -> Scenario:
    return Scenario(
        name=name, title=f"{devices} x: {title}", groups=(group,), devices={USUAL: devices}, listed=True
    )


def _copies(copies: int, slo_ms: float) -> Group:
    return Group(varieties=RESNET, copies=copies, slo_ms=slo_ms)


STUDY = (
    _study("A", 1, "15 resnet50_v2, 100 ms", _copies(15, 100.0)),
    _study("B", 1, "15 resnet50_v2, 25 ms", _copies(15, 25.0)),
    _study("C", 6, "12 resnet50_v2, 25 ms", _copies(12, 25.0)),
    _study("D", 6, "48 resnet50_v2, 100 ms", _copies(48, 100.0)),
    _study("E", 20, "1 resnet50_v2, 25 ms", _copies(1, 25.0)),
    _study("F", 20, "8 resnet50_v2, 25 ms", _copies(8, 25.0)),
    _study("G", 6, "all varieties, 100 ms", Group()),
    _study("H", 20, "all varieties x 2, 50 ms", Group(copies=2, slo_ms=50.0)),
)

OTHERS = (
    Scenario(
        name="skew",
        title="6 x: all varieties, 100 ms, Zipf 1.0",
        groups=(Group(),),
        devices={USUAL: 6},
        zipf=1.0,
    ),
    Scenario(
        name="slos",
        title="4 x: 30 resnet50_v2, 25 to 500 ms",
        groups=tuple(_copies(6, slo_ms) for slo_ms in (25.0, 50.0, 100.0, 250.0, 500.0)),
        devices={USUAL: 4},
    ),
    Scenario(
        name="bursts",
        title="6 x: 24 resnet50_v2, 100 ms, gaps with cv 4",
        groups=(Group(varieties=RESNET, copies=24, cv=4.0),),
        devices={USUAL: 6},
    ),
    Scenario(
        name="memory",
        title="6 x 400 pages: all varieties x 10, 100 ms, Zipf 0.9",
        groups=(Group(copies=10),),
        devices={USUAL: 6},
        pages=400,
        zipf=0.9,
    ),
    Scenario(
        name="transfers",
        title="4 x 250 pages: all varieties x 3, 100 ms",
        groups=(Group(copies=3),),
        devices={USUAL: 4},
        pages=250,
    ),
    Scenario(
        name="sizes",
        title="2 x: 8 fast and 8 slow, 100 ms",
        groups=(Group(varieties=FAST, copies=2), Group(varieties=SLOW, copies=2)),
        devices={USUAL: 2},
    ),
    Scenario(
        name="many",
        title="2 x: all varieties x 6, 250 ms, Zipf 0.5",
        groups=(Group(copies=6, slo_ms=250.0),),
        devices={USUAL: 2},
        zipf=0.5,
    ),
    Scenario(
        name="kinds",
        title="3 x and 3 x 2.5 times as slow: all varieties, 100 ms",
        groups=(Group(),),
        devices={USUAL: 3, "old": 3},
        slowness={"old": 2.5},
    ),
    Scenario(
        name="effort",
        title="2 x: 8 resnet50_v2, 25 ms; 8 resnet101_v1 without a deadline",
        groups=(_copies(8, 25.0), Group(varieties=("resnet101_v1",), copies=8, slo_ms=None)),
        devices={USUAL: 2},
        best_effort=0.5,
    ),
    Scenario(
        name="rows",
        title="4 x: 20 resnet50_v2, 100 ms, requests of 1, 2, 4 and 8 rows",
        groups=tuple(Group(varieties=RESNET, copies=5, rows=rows, weight=1 / rows) for rows in (1, 2, 4, 8)),
        devices={USUAL: 4},
    ),
)


HELD_OUT = (
    Scenario(
        name="alike",
        title="3 x: 20 resnet18_v2, 40 ms",
        groups=(Group(varieties=("resnet18_v2",), copies=20, slo_ms=40.0),),
        devices={USUAL: 3},
        seed=101,
    ),
    Scenario(
        name="few",
        title="12 x: 6 densenet121, 60 ms",
        groups=(Group(varieties=("densenet121",), copies=6, slo_ms=60.0),),
        devices={USUAL: 12},
        seed=102,
    ),
    Scenario(
        name="unlike",
        title="4 x: all varieties, 150 ms",
        groups=(Group(slo_ms=150.0),),
        devices={USUAL: 4},
        seed=103,
    ),
    Scenario(
        name="unlike-tight",
        title="10 x: all varieties, 70 ms, gaps with cv 2",
        groups=(Group(slo_ms=70.0, cv=2.0),),
        devices={USUAL: 10},
        seed=104,
    ),
    Scenario(
        name="steep",
        title="5 x: all varieties, 80 ms, Zipf 1.4",
        groups=(Group(slo_ms=80.0),),
        devices={USUAL: 5},
        zipf=1.4,
        seed=105,
    ),
    Scenario(
        name="steep-slos",
        title="8 x: all varieties x 3, 60, 120 and 240 ms, Zipf 1.2",
        groups=tuple(Group(slo_ms=slo_ms) for slo_ms in (60.0, 120.0, 240.0)),
        devices={USUAL: 8},
        zipf=1.2,
        seed=106,
    ),
    Scenario(
        name="steep-short",
        title="5 x 300 pages: all varieties x 5, 120 ms, Zipf 1.4",
        groups=(Group(copies=5, slo_ms=120.0),),
        devices={USUAL: 5},
        pages=300,
        zipf=1.4,
        seed=107,
    ),
    Scenario(
        name="halves",
        title="3 x: 6 fast and 6 slow, 150 ms, twice as many for the slow",
        groups=(
            Group(varieties=FAST[:3], copies=2, slo_ms=150.0),
            Group(varieties=SLOW[1:], copies=2, slo_ms=150.0, weight=2.0),
        ),
        devices={USUAL: 3},
        seed=108,
    ),
)
"""Scenarios that no constant of the default policy was chosen by: they say what a change is worth."""


def _giants(name: str, weight: float) -> Scenario:
    giant = Group(copies=3, factor=10.0, goodput_weight=weight, apart=True)
    counting = "" if weight == 1.0 else f", each counting as {weight:g}"
    return Scenario(
        name=name,
        title=f"4 x: 24 tiny, 50 ms; 6 of 80 ms, 250 and 500 ms{counting}",
        groups=(
            Group(varieties=FAST, copies=6, slo_ms=50.0, weight=4.0),
            msgspec.structs.replace(giant, varieties=("resnet152_v2",), slo_ms=250.0),
            msgspec.structs.replace(giant, varieties=("resnet152_v1",), slo_ms=500.0),
        ),
        devices={USUAL: 4},
        seed=205,
    )


UNLIKE = (
    Scenario(
        name="mixed-rows",
        title="4 x: 24 resnet50_v2, 150 ms, 1 to 16 rows, Pareto gaps",
        groups=(
            Group(
                varieties=RESNET,
                copies=24,
                slo_ms=150.0,
                pareto=1.5,
                mix=tuple((150.0, rows) for rows in (1, 1, 2, 2, 4, 4, 8, 16)),
            ),
        ),
        devices={USUAL: 4},
        seed=201,
    ),
    Scenario(
        name="mixed-slos",
        title="2 x: 12 resnet50_v2, half 12 ms and half 1 s",
        groups=(Group(varieties=RESNET, copies=12, slo_ms=12.0, mix=((12.0, 1), (1000.0, 1))),),
        devices={USUAL: 2},
        seed=202,
    ),
    Scenario(
        name="mixed-both",
        title="3 x: 16 resnet18_v2, 40 or 300 ms, 1 to 8 rows",
        groups=(
            Group(
                varieties=("resnet18_v2",),
                copies=16,
                slo_ms=40.0,
                mix=tuple((slo_ms, rows) for slo_ms in (40.0, 300.0) for rows in (1, 2, 8)),
            ),
        ),
        devices={USUAL: 3},
        seed=203,
    ),
    Scenario(
        name="mixed-all",
        title="3 x: all varieties, half 60 ms and half 2 s",
        groups=(Group(slo_ms=30.0, mix=((60.0, 1), (2000.0, 1))),),
        devices={USUAL: 3},
        seed=302,
    ),
    Scenario(
        name="mixed-kinds",
        title="5 x, two of them half as fast: 24 of three varieties, 200 ms, 1 to 12 rows",
        groups=(
            Group(
                varieties=RESNET + FAST[:2],
                copies=8,
                slo_ms=200.0,
                mix=tuple((200.0, rows) for rows in (1, 1, 1, 4, 12)),
            ),
        ),
        devices={USUAL: 3, "slow": 2},
        slowness={"slow": 2.0},
        seed=304,
    ),
    Scenario(
        name="mixed-heavy",
        title="1 x: 3 resnet50_v2, 70 ms, 1 or 15 rows",
        groups=(Group(varieties=RESNET, copies=3, slo_ms=70.0, mix=((70.0, 1), (70.0, 15))),),
        devices={USUAL: 1},
        seed=307,
    ),
    Scenario(
        name="wave",
        title="6 x: all varieties, 100 ms, a wave, and a flash crowd for ten of them",
        groups=(
            Group(wave=0.5),
            Group(varieties=(*FAST[:3], *SLOW[:2]), copies=2, wave=0.5, crowd=8.0),
        ),
        devices={USUAL: 6},
        seed=204,
    ),
    _giants("giants", 1.0),
    _giants("giants-10", 10.0),
    _giants("giants-30", 30.0),
    _giants("giants-100", 100.0),
)
"""Scenarios whose requests are unlike: within a model, in time, or by what they take."""


def _lognormal(sigma: float, models: str = "*") -> Spread:
    return Spread(models=models, kind="lognormal", sigma=sigma)


def _bimodal(share: float, factor: float, models: str = "*") -> Spread:
    return Spread(models=models, long_share=share, long_factor=factor)


def _alone(name: str, title: str, spread: Spread, slo_ms: float) -> Scenario:
    return Scenario(
        name=name,
        title=f"1 x: 4 resnet50_v2, {title}, {slo_ms:g} ms",
        groups=(_copies(4, slo_ms),),
        devices={USUAL: 1},
        spreads=(spread,),
    )


def _beside(name: str, devices: int, even: int, spread: Spread, slo_ms: float) -> Scenario:
    wild = Group(varieties=("resnet18_v2",), copies=2, slo_ms=slo_ms, weight=even / 6)
    return Scenario(
        name=name,
        title=f"{devices} x: {even} resnet50_v2, 25 ms; 2 erratic resnet18_v2, {slo_ms:g} ms",
        groups=(_copies(even, 25.0), wild),
        devices={USUAL: devices},
        spreads=(spread,),
    )


def _hidden(name: str, cv: float, slo_ms: float) -> Scenario:
    return Scenario(
        name=name,
        title=f"4 x: 16 resnet50_v2, durations with cv {cv:g}, {slo_ms:g} ms",
        groups=(_copies(16, slo_ms),),
        devices={USUAL: 4},
        spreads=(_lognormal(math.sqrt(math.log(1.0 + cv * cv))),),
        seed=206,
    )


ERRATIC = (
    _alone("even", "even", _lognormal(0.01), 25.0),
    _alone("lognormal-0.3", "sigma 0.3", _lognormal(0.3), 15.0),
    _alone("lognormal-0.5", "sigma 0.5", _lognormal(0.5), 25.0),
    _alone("lognormal-1", "sigma 1", _lognormal(1.0), 25.0),
    _alone("lognormal-1-wide", "sigma 1", _lognormal(1.0), 75.0),
    _alone("bimodal-10x", "1 in 10 takes 10 times as long", _bimodal(0.1, 10.0), 25.0),
    _alone("bimodal-10x-wide", "1 in 10 takes 10 times as long", _bimodal(0.1, 10.0), 75.0),
    _alone("bimodal-4x", "1 in 3 takes 4 times as long", _bimodal(1 / 3, 4.0), 25.0),
    _beside("beside-1", 1, 4, _bimodal(0.1, 10.0, "resnet18_v2*"), 50.0),
    _beside("beside-2", 2, 8, _bimodal(0.1, 10.0, "resnet18_v2*"), 50.0),
    _beside("beside-4", 4, 16, _lognormal(1.0, "resnet18_v2*"), 50.0),
    _hidden("hidden-1", 1.0, 40.0),
    _hidden("hidden-1.5", 1.5, 40.0),
)
"""Kinds of distributions of Orloj (arXiv 2209.00159): alone, beside models whose durations are even, and on
several devices by their coefficient of variation.

Batches take as long as the slowest of their requests."""

SCENARIOS = {scenario.name: scenario for scenario in (*STUDY, *OTHERS, *HELD_OUT, *UNLIKE, *ERRATIC)}
LOADS = (0.7, 1.0, 1.5)
"""Multiples of the fluid capacity: what the devices could do if every batch were of its best size."""
SETS = {
    "study": [scenario.name for scenario in STUDY],
    "others": [scenario.name for scenario in OTHERS],
    "held-out": [scenario.name for scenario in HELD_OUT],
    "unlike-requests": [scenario.name for scenario in UNLIKE],
    "erratic": [scenario.name for scenario in ERRATIC],
    "all": [scenario.name for scenario in (*STUDY, *OTHERS, *HELD_OUT)],
    "six": ["A", "D", "G", "H", "slos", "mixed-slos"],
}


def scenarios_of(text: str) -> list[str]:
    """Return the names of the scenarios that are meant; raise `typer.BadParameter` for any other."""
    names = SETS.get(text) or text.split(",")
    for name in names:
        if name not in SCENARIOS:
            raise typer.BadParameter(f"there is no scenario {name!r}: choose among {', '.join(SCENARIOS)}")
    return names
