"""Every constant of the default policy: what it is, its unit, and where its value comes from.

"Neighbours" is the goodput with half of the value and twice it, in % of the default's for the same requests,
as ``MAINSPRING_NATIVE=0 make policies ARGS="constants --most-requests 2000"`` prints it: *A*, *C* and
*transfers* at 1.0, *G* at 1.5, *transfers* at 0.4, *effort* at 0.3, in *G* also the worst-served tenth of the
models, in *effort* also the answers without a deadline. "The same" is a change of less than 0.5 %, and
of less than 10 % for these two. One seed, with ``fairness`` 0.45: differences of less than 1 % say little.
``python -m mainspring.cli.documents.constants`` prints all as a table.
"""

from typing import Final

# How batches are ranked.
SCALE_BATCHES: Final = 6.0
"""The ranking's scale while requests are dropped, for a model on one device; it is divided by the square root
of the number of copies, because a model on many devices waits less for the next free one. Unit: mean batch
durations. Origin: chosen; the policy as a whole is measured in docs/policy-results.md. Neighbours: 3.0: A@1
98.7, G@1.5 99.4, transfers@1 98.0; 12.0: transfers@1 99.5."""
CALM_SCALE: Final = 0.2
"""The part of the scale that is left while no request is dropped. Unit: part of the scale. Origin: chosen.
Neighbours: 0.1: A@1 99.3; 0.4: A@1 99.3, G@1.5 99.3, G@1.5 worst tenth 119.0, effort@0.3 without deadlines
89.4."""
FULL_SCALE_FROM: Final = 0.05
"""The share of dropped requests from which on the whole scale counts. Unit: share of requests. Origin:
chosen. Neighbours: 0.025: G@1.5 worst tenth 122.8; 0.1: C@1 100.9, G@1.5 99.1, transfers@1 99.3."""
UNLIKE_FULL_SCALE_FROM: Final = 0.15
"""The same where all batches are of models whose requests are unlike: how dense one is that such a model
could run is then mostly chance. Unit: share of requests. Origin: measured: 0.05 serves half a percent less of
*mixed-rows* at 1.0 (docs/policy-results.md, "Unlike requests of one model")."""
UNLIKE_ROWS_BATCHES: Final = 1.2
"""The longest scale where all batches are of models whose requests are unlike in rows, whatever the number of
copies: a small request is dense by its size, not by how many wait with it, and one that waits a little shares
an execution with others. Unit: mean batch durations. Origin: measured: without it *mixed-heavy* serves 1.5 to
2.5 points less, and half of it 1.1 less of *mixed-kinds* at 1.5 (docs/policy-results.md, "Unlike requests of
one model")."""
UNLIKE_REQUESTS: Final = 64
"""Number of requests for which a model's requests count as unlike, after one that is unlike the one before it
in rows or in the time that it is given. Unit: requests. Origin: chosen."""
UNLIKE_SHIFT: Final = 4
"""Requests are alike whose times differ by no more than one part in two to this power. Unit: binary digits.
Origin: chosen."""
FIRST_BATCH_NS: Final = 5_000_000
"""The mean duration of a batch before any was sent. Unit: ns. Origin: chosen. Neighbours: 2_500_000: the
same; 10_000_000: the same."""
BATCH_WEIGHT: Final = 0.01
"""The weight of a batch in the mean duration and the mean number of copies, after the first hundred batches.
Unit: weight. Origin: chosen. Neighbours: 0.005: G@1.5 worst tenth 125.6, transfers@1 99.5; 0.02: G@1.5
99.1."""
RESCALED_FROM: Final = 0.2
"""The change of the scale that is worth ranking all entries again. Unit: part of the scale. Origin: chosen,
for the cost of ranking again. Neighbours: 0.1: C@1 100.8, G@1.5 99.4, G@1.5 worst tenth 123.5, transfers@1
99.5, effort@0.3 without deadlines 85.7; 0.4: G@1.5 99.0, effort@0.3 without deadlines 88.6."""
STALE_SHIFT: Final = 6
"""An estimate that moves by more than one part in two to this power makes the bounds that follow from it
stale. Unit: binary digits. Origin: chosen."""
CHANCE_SCALES: Final = 10.0
"""Factor by which the scale counts among the requests of one erratic model. Unit: scales. Origin: chosen;
planning by distributions is measured in docs/policy-results.md, "Durations that no shape explains"."""

# How fairness is priced.
PRICE_STEP: Final = 0.03
"""Increase of a model's price by a missed request, at a floor of a half and more. Unit: nats of density.
Origin: chosen; what `fairness` costs is measured in docs/policy-results.md. Neighbours: 0.015: C@1 100.9,
G@1.5 101.9, G@1.5 worst tenth 69.3, transfers@1 100.8; 0.06: G@1.5 98.6, G@1.5 worst tenth 122.9, transfers@1
98.2."""
UNBOOSTED_PRICE: Final = 0.25
"""The part of a price that boosts nothing: models that are alike are served alike only on average, and chance
needs no answer. Unit: nats of density. Origin: chosen. Neighbours: 0.125: C@1 100.5, transfers@1 99.1; 0.5:
C@1 100.9."""
HIGHEST_PRICE: Final = 16.0
"""The highest price, beyond what any batch makes up for: models that no boost can save stay there. Unit: nats
of density. Origin: chosen."""
ANSWERED_WEIGHT: Final = 0.002
"""The weight of one request in the share of all requests that are answered. Unit: weight. Origin: chosen.
Neighbours: 0.001: G@1.5 99.2; 0.004: G@1.5 99.3, G@1.5 worst tenth 113.4, transfers@1 99.2."""
TURN_BOOST: Final = 0.7
"""The most that a model is boosted for the time since it missed its first request after its last answer: a
turn takes the place of a batch that is at most twice as dense. Unit: nats of density. Origin: measured: 1.0
leaves fewer models of *memory* without an answer, and is half a percent below
(docs/policy-results.md, "What fairness costs")."""
TURN_WITHIN_NS: Final = 4_000_000_000
"""The time within which that boost is reached. Unit: ns. Origin: measured, likewise: 2 s serves up to a
percent less."""
LOWEST_FLOOR: Final = 1e-6
"""The floor below which there is none. Unit: share of requests. Origin: chosen, for the arithmetic."""

# How long a batch waits to grow, and when the end of a long queue leaves.
EXEC_SCARCE_FROM: Final = 0.8
"""The utilisation of all devices above which a batch may wait to grow, and above which EXEC has a price.
Unit: utilisation. Origin: chosen. Neighbours: 0.4: effort@0.3 without deadlines 0.0; 0.9: transfers@1
99.3."""
LONGEST_DELAY_NS: Final = 50_000_000
"""The longest time that a batch waits to grow. Unit: ns. Origin: chosen. Neighbours: 25_000_000: the same;
100_000_000: the same."""
SHORTEST_DELAY_NS: Final = 50_000
"""The time below which a batch does not wait at all. Unit: ns. Origin: chosen. Neighbours: 25_000: the same;
100_000: effort@0.3 without deadlines 87.7."""
SHORT_QUEUE: Final = 8
"""The number of a model's queued requests up to which none expires early: their refusals take no time. Unit:
requests. Origin: chosen. Neighbours: 4: the same; 16: the same."""
CAPACITY_DOUBT: Final = 2
"""The factor between the rows that may be served before a request and those that the estimates say: batches
may be quicker, and requests with earlier deadlines may be passed over. Unit: factor. Origin: chosen,
likewise. Neighbours: 1: the same; 4: the same."""

# What a fast device leaves to an idle slower one.
LEAVES_FROM: Final = 0.5
"""The share of the devices that hold a model which are busy, from which on a fast one leaves to an idle
slower one what that ends in time. Unit: share of devices. Origin: chosen."""
LEFT_TO_LOOKED_AT: Final = 4
"""The idle devices of a kind that are looked at for one that ends a batch in time. Unit: devices. Origin:
chosen, as a bound on what a choice takes."""
QUEUE_LOOKED_AT: Final = 64
"""The queued requests of a model that are looked at for one that slower devices can't end in time. Unit:
requests. Origin: chosen, likewise."""
SHARES_FROM: Final = 1.4
"""The factor by which requests take less time together than one by one, from which on they share an execution
while hardly any is dropped. Unit: factor. Origin: chosen."""

# What a LOAD is worth, and an eviction costs.
WORTH_SCALE: Final = 10**15
"""The factor that makes whole numbers of rows for each nanosecond. Unit: factor. Origin: chosen, for the
arithmetic."""
EVICTED_FOR_NS: Final = 50_000_000
"""The time for which an evicted model that requests come for is away: until its turn to be loaded again.
Unit: ns. Origin: measured: 300 ms serves less where memory is shortest (docs/policy-results.md, "What other
LOADs could still bring"). Neighbours: 25_000_000: transfers@1 99.1; 100_000_000: the same."""
SERVED_WEIGHT: Final = 0.005
"""The weight of a batch in the mean of rows for each nanosecond of EXEC. Unit: weight. Origin: chosen; the
price as a whole is measured in docs/policy-results.md, "What other LOADs could still bring". Neighbours:
0.0025: the same; 0.01: transfers@1 99.2."""
REPRICED_FROM: Final = 0.1
"""The change of EXEC's price from which on the price is set again; a smaller one changes no order. Unit: part
of the price. Origin: chosen. Neighbours: 0.05: transfers@1 99.2; 0.2: the same."""
MOST_BOOST: Final = 4.0
"""The most that a model's boost counts in the worth of a LOAD, as if about 50 times as many requests waited:
what no LOAD can save does not keep other models from theirs. Unit: nats. Origin: chosen. Neighbours: 2.0: the
same; 8.0: the same."""
EXPECTED_ROWS: Final = 2
"""The rows of the largest batches that are expected of a model that nothing waits for. Unit: rows. Origin:
chosen. Neighbours: 1: the same; 4: the same."""
POPULARITY_DECAY_NS: Final = 30_000_000_000
"""The time constant with which a model's count of requests decays. Unit: ns. Origin: chosen. Neighbours:
15_000_000_000: transfers@1 99.0; 60_000_000_000: the same."""
RENEWED_AFTER: Final = 40.0
"""The age after which all counts are scaled down, before they grow out of a float's range. Unit: time
constants. Origin: chosen, for the arithmetic."""
LEAST_SEEN_NS: Final = 1_000_000_000
"""The shortest time over which rates are computed. Unit: ns. Origin: chosen. Neighbours: 500_000_000:
transfers@1 99.3; 2_000_000_000: the same."""
IDLE_VICTIMS_SHARE: Final = 0.5
"""The part of a model's own count that its victims together stay below when an idle LOAD executor loads the
model. Unit: part of a count. Origin: chosen. Neighbours: 0.25: the same; 1.0: transfers@1 99.2."""

# When a model gets a further copy.
REPLICATED_FROM: Final = 0.4
"""The utilisation of a model's least busy device from which on the model gets a further copy. Unit:
utilisation. Origin: chosen. Neighbours: 0.2: the same; 0.8: the same."""
REPLICA_SHARE: Final = 0.5
"""The most utilisation of the device that takes the copy, as a part of that of the model's least busy device.
Unit: part of a utilisation. Origin: chosen. Neighbours: 0.25: the same; 1.0: the same."""
MOST_REPLICATED: Final = 64
"""The number of models that are remembered for a further copy. Unit: models. Origin: chosen, as a bound on
memory."""
REPLICATION_PAUSE_NS: Final = 10_000_000
"""The time for which no model is noted after no device, or no victim there, was found for one. Unit: ns.
Origin: chosen, for the cost of the search."""
UTILISATION_WINDOW_NS: Final = 100_000_000
"""The time constant of utilisations. Unit: ns. Origin: chosen. Neighbours: 50_000_000: the same; 200_000_000:
the same."""

# Batches without a deadline, and work in advance.
TOLERATED_MISSES: Final = 0.005
"""The share of missed deadlines from which on requests without one get only `LEAST_BEST_EFFORT_SHARE`. Unit:
share of requests. Origin: chosen. Neighbours: 0.0025: effort@0.3 without deadlines 78.1; 0.01: the same."""
LEAST_BEST_EFFORT_SHARE: Final = 0.125
"""The part of the slack that a batch without a deadline may take however many deadlines are missed: one that
is this short costs hardly any. Unit: part of the least recent slack. Origin: chosen; best effort is measured
in docs/policy-results.md, scenario *effort*. Neighbours: 0.0625: the same; 0.25: the same."""
LEAST_LOOKAHEAD_MS: Final = 0.5
"""The shortest time before the end of its work at which an executor gets more. Unit: ms. Origin: chosen;
Clockwork's appendix B has 5 ms. Neighbours: 0.25: the same; 1.0: G@1.5 98.6, G@1.5 worst tenth 68.2,
transfers@0.4 99.4, effort@0.3 without deadlines 86.5."""
LOOKAHEAD_MARGIN_MS: Final = 0.3
"""Time that the lookahead adds to the way to the worker and back, for what predictions and the network vary
by. Unit: ms. Origin: chosen. Neighbours: 0.15: C@1 100.8, G@1.5 worst tenth 125.6, transfers@1 99.4,
effort@0.3 without deadlines 76.5; 0.6: G@1.5 98.6, G@1.5 worst tenth 68.2, transfers@0.4 99.4, effort@0.3
without deadlines 86.5."""

# Early refusals.
REFUSE_WRONGLY: Final = 0.15
"""`SchedulerConfig.refuse_wrongly` where it is not set. Unit: share of early refusals. Origin: measured, the
knee of the curve in docs/policy-results.md, "How early refusals come". Neighbours: as there: 0.1, 0.2."""
