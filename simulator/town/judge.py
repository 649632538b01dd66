"""The rules that hold in every town; each method raises AssertionError for what breaks one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.messages.ids import epoch_of
from mainspring.simulator.town.device import outputs_of
from mainspring.simulator.town.faults import MS
from mainspring.simulator.town.gateways import TownGateway
from mainspring.simulator.town.workers import Begun, TownWorker

if TYPE_CHECKING:
    from mainspring.simulator.town.town import Town
    from mainspring.simulator.town.workload import Sent

GRACE_NS: Final = 100 * MS
"""The gateway's grace after a deadline (`GatewayConfig.grace_ms`)."""
WAY_NS: Final = 30 * MS
"""More than a reply takes from the gateway to its client while nothing is wrong."""
CLOCK_ERROR_NS: Final = 200_000
"""Error that the controller may make about a worker's clock that has not stepped."""
STEP_NS: Final = 2_000 * MS
"""Time after a step of a clock within which nobody need have noticed it."""
GOODPUT: Final = 0.95
LEAST_SLO_NS: Final = 500 * MS
"""Requests with less time may be refused for a LOAD."""


class Judge:
    """Sees what happens in a town."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self._begun: list[Begun] = []
        self._epochs: dict[str, int] = {}
        """Highest epoch of the actions that each worker has begun."""
        self._models = {each.name: each for each in town.plan.models}

    # --- requests ---

    def awaits(self, sent: Sent) -> None:
        """A request was sent: its reply is to come by its deadline and the grace."""
        slo_ns = sent.request.slo_ns
        if slo_ns is not None:
            at_ns = sent.sent_ns + slo_ns + GRACE_NS + WAY_NS
            self._town.agenda.at(at_ns, self._overdue, sent, sent.sent_ns)

    def replied(self, sent: Sent) -> None:
        """A reply has come: its outputs are the request's."""
        if sent.outcome == "ok":
            spec = self._models[sent.request.model]
            right = outputs_of(spec, sent.inputs)
            assert sent.outputs == right, (
                f"request {sent.key} for {spec.name} is answered with {sent.outputs.hex()}, not {right.hex()}"
            )
        assert sent.outcome != "cancelled" or sent.request.cancel_ns is not None, (
            f"request {sent.key} was cancelled by nobody"
        )
        for wrong in self._town.workload.replied(sent):
            raise AssertionError(f"request {sent.key}: {wrong}")

    def _overdue(self, sent: Sent, since_ns: int) -> None:
        """A reply should have come, unless its gateway or the way to it was out of order meanwhile."""
        if sent.outcome or sent.lost:
            return
        now_ns = self._town.agenda.now_ns
        excused_ns = self._excused_until_ns(sent, since_ns, now_ns)
        if excused_ns:
            again_ns = max(now_ns, excused_ns) + GRACE_NS + WAY_NS
            self._town.agenda.at(again_ns, self._overdue, sent, excused_ns)
            return
        raise AssertionError(f"request {sent.key} for {sent.request.model} has no reply: {sent.request}")

    def _excused_until_ns(self, sent: Sent, since_ns: int, now_ns: int) -> int:
        """Return until when a reply could not come between two instants; 0 if it always could."""
        plan = self._town.plan
        client = f"client{sent.request.client}"
        gateway = f"gateway{sent.request.client % plan.gateways}"
        until_ns = 0
        for fault in plan.faults:
            ends_ns = fault.end_ns
            here = {fault.where, fault.to} == {client, gateway} or (
                fault.where == gateway and fault.kind in ("pause", "partition", "power", "crash")
            )
            if fault.kind == "power" and here:
                # The client notices by silence, or when its connection is refused.
                ends_ns += 7_000 * MS
            if fault.kind == "step" and fault.where == gateway:
                here = True
            if here and fault.at_ns <= now_ns and ends_ns > since_ns:
                until_ns = max(until_ns, ends_ns)
        return until_ns

    # --- windows ---

    def began(self, begun: Begun) -> None:
        """A worker has begun an INFER."""
        action = begun.action
        assert action.earliest_ns <= begun.begin_ns <= action.latest_ns, (
            f"{begun.worker} begins action {action.action_id} at {begun.begin_ns}, outside of its window "
            f"{action.earliest_ns} to {action.latest_ns}"
        )
        epoch, highest = epoch_of(action.action_id), self._epochs.get(begun.worker, 0)
        assert epoch >= highest, (
            f"{begun.worker} begins action {action.action_id} of epoch {epoch} behind one of epoch {highest}"
        )
        self._epochs[begun.worker] = epoch
        self._begun.append(begun)

    def look(self) -> None:
        """Judge by true time what has begun."""
        begun, self._begun = self._begun, []
        program = self._town.leader
        if program is None:
            return
        controller = program.process
        program.logged.settle()
        for each in begun:
            # That of another controller is not known here.
            window = program.tap.windows.pop((each.worker, each.action.action_id), None)
            worker = self._town.processes[each.worker]
            if window is None or self._stepped(controller.name, each) or self._stepped(each.worker, each):
                continue
            reads_ns = controller.clock.reads(each.true_ns)
            early_ns, late_ns = window[0] - reads_ns, reads_ns - window[1]
            assert max(early_ns, late_ns) <= CLOCK_ERROR_NS, (
                f"{worker.name} begins action {each.action.action_id} {early_ns} ns before its window, "
                f"{late_ns} ns behind it, by true time"
            )

    def _stepped(self, name: str, begun: Begun) -> bool:
        at_ns = self._town.processes[name].clock.stepped_ns
        return at_ns >= 0 and begun.true_ns - at_ns < STEP_NS

    # --- the end ---

    def settled(self) -> None:
        """The last fault has been over for long, and no request came for a while."""
        self.look()
        town = self._town
        for sent in town.sent:
            assert sent.outcome or sent.lost or sent.sent_ns < 0, (
                f"request {sent.key} for {sent.request.model} never had a reply: {sent.request}"
            )
        self._goodput()
        self._joined()

    def _goodput(self) -> None:
        from mainspring.simulator.town.town import SETTLE_NS

        from_ns = self._town.plan.over_ns + SETTLE_NS
        asked = [
            each
            for each in self._town.sent
            if each.request.at_ns >= from_ns
            and each.request.cancel_ns is None
            and (each.request.slo_ns or 0) >= LEAST_SLO_NS
        ]
        good = [
            each
            for each in asked
            if each.outcome == "ok" and each.replied_ns - each.sent_ns <= (each.request.slo_ns or 0) + 2 * MS
        ]
        bad = [
            f"{each.key} {each.request.model} {each.outcome or 'unsent'}"
            for each in asked
            if each not in good
        ]
        assert len(good) >= GOODPUT * len(asked), (
            f"long after the last fault {len(good)} of {len(asked)} requests are answered in time: {bad[:8]}"
        )

    def _joined(self) -> None:
        """All have joined, page tables agree, nothing is outstanding."""
        programs = {name: each.program for name, each in self._town.processes.items()}
        controller = self._town.leader
        assert controller is not None, "no controller leads"
        cluster = controller.scheduler.cluster
        assert not cluster.requests, f"requests are still known to the controller: {[*cluster.requests][:5]}"
        for name, program in programs.items():
            if isinstance(program, TownWorker):
                worker = cluster.workers.get(name)
                assert worker is not None, f"{name} has not joined"
                known = {model: each.pages for model, each in worker.placements.items() if each.pages}
                held = {each.model: each.pages for each in program.core.residency.resident()}
                assert known == held, f"the controller has on {name} {known}, and it holds {held}"
            elif isinstance(program, TownGateway):
                known_gateways = controller.shell.sessions.gateways
                assert name in known_gateways, f"{name} has no session"
                assert not program.driver.core.in_flight, (
                    f"{name} has {program.driver.core.in_flight} in flight"
                )
            elif not name.startswith("controller"):
                assert program is not None, f"{name} does not run"
