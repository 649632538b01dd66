"""Shares of the devices' time: while requests are dropped, no tenant gets more than his at others' cost.

Each request is charged the device time that it takes: its rows' part of its batch's EXEC, and of the LOADs
that brought its model in. While more than `DROPPED` of the work is dropped, and several tenants ask, each may
have `Tenants.level` of device time a second for each unit of his weight: the level at which what all of them
ask for, each no more than his part, is what the devices are found to do (max-min fairness; water-filling).
Who asks for less is not held back, and what he leaves is shared out among the others. Who asks for more pays
from a bucket that fills at his rate (as in virtual clocks and start-time fair queueing, where a request is
tagged on arrival with the time that its flow is due), and is refused on arrival while it is empty.

A request is charged on arrival with what its model's requests have taken lately, since what it takes is known
only once it has ended, and by then many more would have come; the difference is settled at its end. What the
devices do is found by trying: a bit more while less than `DROPPED` is dropped, less while more is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mainspring.messages.codes import Reason
from mainspring.messages.metrics import TenantStatus

if TYPE_CHECKING:
    from mainspring.cluster.models import Model
    from mainspring.cluster.requests import Request

TICK_NS: Final = 20_000_000
"""Time between two looks at who asks for how much."""
MEMORY_NS: Final = 500_000_000
"""Time for which what was asked for and served counts."""
DROPS_MEMORY_NS: Final = 100_000_000
"""Time for which what was dropped counts."""
DROPPED: Final = 0.01
"""Part of the work that is dropped while the devices do all they can."""
PRESSED: Final = 0.02
"""Part of the work that is dropped from which on tenants are held back."""
GROWTH_PER_S: Final = 0.3
"""Growth a second of the logarithm of what the devices are taken to do, while no more is dropped."""
SHRINK_PER_S: Final = 1.0
"""The same shrinking while more is dropped."""
MOST_OF_DONE: Final = 1.05
"""Bound on what the devices are taken to do, in what they have done lately."""
MOST_LESS: Final = 0.5
"""They are taken to do less than that by half the part that is dropped, but by no more than this: what waits
beyond what can be done in time has to go first."""
BURST_NS: Final = 200_000_000
"""Time whose rate a bucket holds."""
LEAST_PART: Final = 0.5
"""The devices are taken to do no less than this part of their time's EXEC."""
LEAST_LEFT: Final = 0.05
"""Part of what the devices have done that is left in any case for those who ask for more than their share."""
QUIET_NS: Final = 2_000_000_000
"""Time without anybody held back after which nothing is kept of how much the devices do."""
ROW_WEIGHT: Final = 1 / 16
"""Weight of one batch in what a row of a model is taken to cost."""
MOST_MODELS: Final = 100_000
"""Models that costs are known of; then they are learnt again, since models that are gone are among them."""
MOST_TENANTS: Final = 10_000
"""Tenants that are known by name; further ones share what the unnamed one has."""
_WANT_OF_TIME: Final = (Reason.DEADLINE_PASSED, Reason.OVERLOADED, Reason.DEADLINE_UNREACHABLE)


class Tenant:
    """One tenant: what he asks for and gets."""

    __slots__ = (
        *("asked_ns", "balance_ns", "device_ns", "dropped", "executed", "filled_ns", "name", "over_share"),
        *("rate", "requests", "weight"),
    )

    def __init__(self, name: str, weight: float) -> None:
        self.name, self.weight = name, weight
        self.asked_ns = 0.0
        """Device time of what he asked for, fading with `MEMORY_NS`."""
        self.rate = 0.0
        """Devices that he may have, while he is held back; 0 while he is not."""
        self.balance_ns = 0.0
        """Device time in his bucket, as of ``filled_ns``."""
        self.filled_ns = 0
        self.requests = self.executed = self.dropped = self.over_share = self.device_ns = 0
        """Counts, as in `TenantStatus`."""


class Tenants:
    """All tenants of a scheduler."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """``weights``: the configured ones, by tenant; 1 for others."""
        self.used = False
        """True once a request has named its tenant: until then nothing is kept."""
        self._weights = weights
        self._tenants: dict[str, Tenant] = {}
        self._row_ns: dict[int, float] = {}
        """Device time that a row of a model, or of a bucket, takes, by its number."""
        self._last: dict[int, Tenant] = {}
        """The tenant of the last request for each model, by number."""
        self.devices = 0.0
        """Devices that the workers are taken to be; 0 while nobody is held back."""
        self.level = 0.0
        """Devices for each unit of weight; 0 while nobody is held back."""
        self._tick_ns = 0
        self._served_ns = self._span_ns = 0.0
        """Device time that was charged, and the time in which it was, both fading with `MEMORY_NS`."""
        self._dropped_ns = self._ended_ns = 0.0
        """Device time of what was dropped, and of all that ended, both fading with `DROPS_MEMORY_NS`."""
        self._held_ns = 0

    def refused(self, now_ns: int, request: Request, workers: int) -> tuple[str, int] | None:
        """Charge a request that has arrived; return why it is refused instead, and until when, or None.

        ``workers`` is how many take work. A request without a deadline is never refused for this: it gets
        idle time.
        """
        self.used = True
        if now_ns >= self._tick_ns:
            self._tick(now_ns, workers)
        tenant = self._charged(request)
        tenant.requests += 1
        rate = tenant.rate
        if not rate:
            return None
        self._fill(now_ns, tenant)
        if tenant.balance_ns >= 0.0 or request.due_ns is None:
            tenant.balance_ns -= request.charged_ns
            return None
        request.charged_ns = 0
        tenant.over_share += 1
        self._held_ns = now_ns
        again_ns = now_ns + int(-tenant.balance_ns / rate) + 1
        return self._said(tenant), again_ns

    def joined(self, now_ns: int, request: Request) -> None:
        """Charge a piece of a query, which was admitted as a whole."""
        tenant = self._charged(request)
        if tenant.rate:
            self._fill(now_ns, tenant)
            tenant.balance_ns -= request.charged_ns

    def query_refused(self, now_ns: int, name: str, workers: int) -> tuple[str, int] | None:
        """Return why a query is refused that has a deadline, and until when; its pieces are charged."""
        self.used = True
        if now_ns >= self._tick_ns:
            self._tick(now_ns, workers)
        tenant = self._of(name)
        tenant.requests += 1
        if not tenant.rate:
            return None
        self._fill(now_ns, tenant)
        if tenant.balance_ns >= 0.0:
            return None
        tenant.over_share += 1
        self._held_ns = now_ns
        again_ns = now_ns + int(-tenant.balance_ns / tenant.rate) + 1
        return self._said(tenant), again_ns

    def executed(self, requests: list[Request], taken_ns: int, end_ns: int, done: bool) -> None:
        """Charge the requests of a batch for the time that it took; ``done`` says that they have ended."""
        rows = 0
        for request in requests:
            rows += request.rows
        if not rows or taken_ns <= 0:
            return
        each_ns = taken_ns / rows
        self._served_ns += taken_ns
        self._ended_ns += taken_ns
        if done:
            number = requests[0].model.number
            before_ns = self._row_ns.get(number, 0.0)
            self._row_ns[number] = before_ns + ROW_WEIGHT * (each_ns - before_ns) if before_ns else each_ns
        for request in requests:
            tenant = self._of(request.event.tenant)
            cost_ns = each_ns * request.rows
            tenant.device_ns += int(cost_ns)
            if done:
                tenant.balance_ns += request.charged_ns - cost_ns
                request.charged_ns = 0
                tenant.executed += 1
                if request.due_ns is not None and end_ns > request.due_ns:
                    self._dropped_ns += cost_ns
            else:
                tenant.balance_ns -= cost_ns

    def loaded(self, model: Model, taken_ns: int) -> None:
        """Charge a LOAD to those whose requests wait for its model, or to who asked for it last."""
        if taken_ns <= 0:
            return
        rows: dict[str, int] = {}
        for each in model.by_bucket:
            for request in each.queue:
                tenant = request.event.tenant
                rows[tenant] = rows.get(tenant, 0) + request.rows
        if not rows:
            last = self._last.get(model.number)
            if last is None:
                return
            rows[last.name] = 1
        self._served_ns += taken_ns
        each_ns = taken_ns / sum(rows.values())
        for name, count in rows.items():
            payer = self._of(name)
            payer.balance_ns -= each_ns * count
            payer.device_ns += int(each_ns * count)

    def rejected(self, request: Request, reason: Reason, soonest_ns: int) -> None:
        """Give back what a request was charged that is rejected, and note whether for want of device time.

        ``soonest_ns`` is when it could have been done with nothing before it: what was hopeless from the
        start says nothing about how much the devices have to do.
        """
        cost_ns = request.charged_ns
        if not cost_ns:
            return
        request.charged_ns = 0
        tenant = self._of(request.event.tenant)
        tenant.balance_ns += cost_ns
        if reason in _WANT_OF_TIME and request.due_ns is not None and soonest_ns <= request.due_ns:
            self._dropped_ns += cost_ns
            self._ended_ns += cost_ns
            tenant.dropped += 1

    def withdrawn(self, request: Request) -> None:
        """Give back what a request was charged whose client is gone before it was dispatched."""
        if request.charged_ns:
            self._of(request.event.tenant).balance_ns += request.charged_ns
            request.charged_ns = 0

    def status(self) -> tuple[TenantStatus, ...]:
        """Return what each tenant has had, in the order in which they came; nothing before one is named."""
        return tuple(
            [
                TenantStatus(
                    *(each.name, each.weight, each.requests, each.executed, each.dropped, each.over_share),
                    *(each.device_ns, each.rate),
                )
                for each in self._tenants.values()
            ]
        )

    def validate(self) -> None:
        """Check the invariants; raise AssertionError with the tenant that breaks one."""
        for tenant in self._tenants.values():
            assert tenant.asked_ns >= 0, f"{tenant.name!r} asked for {tenant.asked_ns} ns"
            assert bool(tenant.rate) <= bool(self.level), f"{tenant.name!r} is held back, and nobody is"

    def _charged(self, request: Request) -> Tenant:
        """Note on a request, and of its tenant, what it is taken to cost."""
        model, tenant = request.model, self._tenants.get(request.event.tenant)
        if tenant is None:
            tenant = self._of(request.event.tenant)
        row_ns = self._row_ns.get(model.number, 0.0)
        cost_ns = row_ns * request.rows if row_ns else float(model.fastest_ns(request.rows))
        tenant.asked_ns += cost_ns
        self._last[model.base.number] = tenant
        request.charged_ns = int(cost_ns) or 1
        return tenant

    def _said(self, tenant: Tenant) -> str:
        whose = f"tenant {tenant.name!r} is" if tenant.name else "requests of no tenant are"
        return (
            f"{whose} ahead of a share of {tenant.rate:.2f} devices, of {self.devices:.2f} that are shared "
            "out while requests are dropped"
        )

    def _of(self, name: str) -> Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= MOST_TENANTS:
                name = ""
            tenant = self._tenants.get(name) or Tenant(name, self._weights.get(name, 1.0))
            self._tenants[name] = tenant
        return tenant

    def _fill(self, now_ns: int, tenant: Tenant) -> None:
        """Fill a tenant's bucket up to an instant."""
        rate = tenant.rate
        tenant.balance_ns = min(
            tenant.balance_ns + rate * (now_ns - tenant.filled_ns), rate * float(BURST_NS)
        )
        tenant.filled_ns = now_ns

    def _tick(self, now_ns: int, workers: int) -> None:
        """Look at who asks for how much, and hold back who asks for more than his share, if that is to be."""
        passed_ns = min(now_ns - self._tick_ns + TICK_NS, 10 * MEMORY_NS)
        self._tick_ns = now_ns + TICK_NS
        if len(self._last) > MOST_MODELS or len(self._row_ns) > MOST_MODELS:
            self._last.clear()
            self._row_ns.clear()
        dropped = self._dropped_ns / self._ended_ns if self._ended_ns > 0 else 0.0
        self._span_ns += passed_ns
        asking = [each for each in self._tenants.values() if each.asked_ns > 0]
        if self.devices and (len(asking) < 2 or now_ns - self._held_ns > QUIET_NS):
            self._release()
        elif not self.devices and dropped > PRESSED and len(asking) > 1:
            self._held_ns = now_ns
            self.devices = self._served_ns / self._span_ns
        if self.devices:
            self._try(passed_ns, dropped, workers)
            self._share_out(now_ns, asking)
        faded = math.exp(-passed_ns / MEMORY_NS)
        self._served_ns *= faded
        self._span_ns *= faded
        for tenant in asking:
            tenant.asked_ns *= faded
            if tenant.asked_ns < 1e-4 * self._span_ns:
                tenant.asked_ns = 0.0
        faded = math.exp(-passed_ns / DROPS_MEMORY_NS)
        self._dropped_ns *= faded
        self._ended_ns *= faded

    def _try(self, passed_ns: int, dropped: float, workers: int) -> None:
        """Take the devices to do a bit more, or less, by what is dropped; about what they have done."""
        did = self._served_ns / self._span_ns
        if dropped > DROPPED:
            self.devices *= math.exp(-SHRINK_PER_S * passed_ns / 1e9)
        else:
            self.devices *= math.exp(GROWTH_PER_S * passed_ns / 1e9)
        least = (1.0 - min(dropped / 2.0, MOST_LESS)) * did
        self.devices = max(min(self.devices, MOST_OF_DONE * did), least, LEAST_PART * workers, 1e-3)

    def _share_out(self, now_ns: int, asking: list[Tenant]) -> None:
        """Give each tenant the rate that follows from the level."""
        did = self._served_ns / self._span_ns
        even = did / sum([each.weight for each in asking])
        modest, more, left = [], [], self.devices
        for tenant in asking:
            wanted = tenant.asked_ns / self._span_ns
            if wanted > even * tenant.weight:
                more.append((wanted, tenant.weight))
            else:
                # What waits too long already is others': he is not held back for it.
                modest.append(tenant)
                left -= wanted
        self.level = level_of(max(left, LEAST_LEFT * did, 1e-3), more) if more else 0.0
        for tenant in asking:
            rate = self.level * tenant.weight
            if tenant in modest:
                rate = max(rate, even * tenant.weight) if self.level else 0.0
            if tenant.rate:
                self._fill(now_ns, tenant)
            else:
                tenant.filled_ns = now_ns
                ahead = tenant.asked_ns >= rate * self._span_ns
                tenant.balance_ns = 0.0 if ahead else rate * float(BURST_NS)
            tenant.rate = rate

    def _release(self) -> None:
        """Hold nobody back."""
        self.devices = self.level = 0.0
        for tenant in self._tenants.values():
            tenant.rate = 0.0


def level_of(devices: float, asked: list[tuple[float, float]]) -> float:
    """Return the devices for each unit of weight at which all are given out: to each tenant, of whom
    ``asked`` has what he asks for and his weight, that or his part, whichever is less.

    Returns 0 if they ask for less than there is.
    """
    left, weights = devices, sum([weight for _, weight in asked])
    for wanted, weight in sorted(asked, key=_by_need):
        if wanted * weights >= left * weight:
            return left / weights
        left -= wanted
        weights -= weight
    return 0.0


def _by_need(asked: tuple[float, float]) -> float:
    return asked[0] / asked[1]
