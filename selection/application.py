"""An application: members are selected, their predictions are combined, feedback is learnt from. Pure.

Its driver asks `select` whom to ask, runs them under one deadline, hands `combine` what came, and passes
feedback to `observe`. A policy that raises costs no request: the first member answers, which is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mainspring.messages.applications import ApplicationSpec, application_fault, member_name
from mainspring.selection.averages import Averages
from mainspring.selection.contexts import MOST_CONTEXT_BYTES, Contexts
from mainspring.selection.ledger import Answered, Feedback, Ledger
from mainspring.selection.outputs import Answer, Array, Output
from mainspring.selection.policies.registry import make_selection_policy
from mainspring.selection.policy import Inputs, Policy, Selected, State
from mainspring.selection.stores.journal import Journal


class Bounds(NamedTuple):
    """Bounds of what an application keeps."""

    ledger_entries: int = 100_000
    ledger_bytes: int = 64 << 20
    ledger_ns: int = 3_600_000_000_000
    """Age at which feedback is late."""
    state_bytes: int = 64 << 20
    """Bytes of the contexts' states."""
    idle_ns: int = 7 * 86_400_000_000_000
    """Time after its last use at which a context's state is dropped from memory."""
    first_id: int = 1
    """Id of the first answer; the others follow."""


class Reply(NamedTuple):
    """An application's answer to a request."""

    query_id: int
    """Under which feedback finds it."""
    answer: Answer
    missing: tuple[str, ...]
    """Members that were selected and whose prediction did not come."""
    default: tuple[bool, ...]
    """True for each row that has the default, because too few members agree."""
    shared: bool = False
    """True if the store has not told its state, and the shared one stood in for it."""


class Application:
    """The learning around the members of one application."""

    def __init__(self, spec: ApplicationSpec, bounds: Bounds = Bounds()) -> None:  # noqa: B008
        """Raise ValueError if the specification, its policy or its loss is not what it has to be."""
        if fault := application_fault(spec):
            raise ValueError(fault)
        self.spec = spec
        self.members = {member_name(each): each for each in spec.members}
        """The models that requests are sent to, by the name that states have."""
        self._output = Output(spec.kind, loss=spec.loss, tolerance=spec.tolerance, span=spec.span)
        self.policy = make_selection_policy(spec.policy, [*self.members], self._output, spec.options)
        self._bounds = bounds
        self.keeps_inputs = type(self.policy).observe is not Policy.observe
        """True if the policy learns from more than losses, and so needs the inputs when feedback comes."""
        self.contexts = Contexts(self.policy, bounds.state_bytes, bounds.idle_ns)
        self.journal: Journal | None = None
        """Updates for a store; None without one."""
        self.ledger = Ledger(bounds.ledger_entries, bounds.ledger_bytes, bounds.ledger_ns, bounds.first_id)
        self._averages = Averages(spec.kind)
        self.counts: Counter[str] = Counter()
        """``requests``, ``missing``, ``defaults`` (rows), ``shared`` (replies), ``policy_failed``, and rows
        of feedback by what became of them (`Feedback`)."""
        self.asked: Counter[str] = Counter()
        """Requests that each member was selected for."""
        self.lacked: Counter[str] = Counter()
        """Number of those that were answered without it."""
        self.confidence = (0, 0.0)
        """Rows that were answered, and the sum of their confidences."""
        self.losses: dict[str, tuple[int, float]] = {}
        """Rows that each member, and the whole (``""``), was judged by, and the sum of their losses."""

    @property
    def version(self) -> int:
        """Return the version of what predicts here, beside the members; 0 if nothing does."""
        return 0

    def changed(self, spec: ApplicationSpec) -> Application:
        """Return the application with another specification; this one is not to be observed any more.

        Members that stay keep what was learnt of them, and answers wait for their feedback, unless the
        members' output means something else now; weights start over with a policy of another kind. Raises
        ValueError as a new one does.
        """
        found = Application(spec, self._bounds)
        found.counts, found.ledger = self.counts, self.ledger
        found.asked, found.lacked, found.confidence = self.asked, self.lacked, self.confidence
        if (spec.output, spec.kind) != (self.spec.output, self.spec.kind):
            self.ledger.clear()
            return found
        if found.keeps_inputs and not self.keeps_inputs:
            # Nothing could be learnt from answers whose inputs were not kept.
            self.ledger.clear()
        found._averages = self._averages
        for member in self.members.keys() - found.members.keys():
            self._averages.drop(member)
        found.losses = {name: each for name, each in self.losses.items() if not name or name in found.members}
        if found.policy.continues(self.policy):
            found.contexts = self.contexts
            found.contexts.adopt(found.policy)
            found.journal = self.journal
            if found.journal is not None:
                found.journal.adopt(found.policy)
        return found

    def keep_in_store(self, token: Callable[[], int], wake: Callable[[], None]) -> Journal:
        """Have states kept in a store, too; arguments as of the journal, which is returned."""
        self.journal = Journal(self.spec.name, self.policy, self.contexts, token, wake)
        return self.journal

    def forget(self, context: str) -> int:
        """Erase a context in memory, ledger and store; return how many states and answers were here."""
        return self.contexts.forget(context) + self.ledger.forget(context)

    def select(
        self, now_ns: int, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        """Return the members to ask, each with the probability of its selection; the first counts most.

        Raises ValueError if the context's name is too long, or if there is one and the application has none.
        """
        if context is not None:
            self._check(context)
        state = self.contexts.state(now_ns, context)
        self.counts["requests"] += 1
        try:
            chosen = self.policy.select(state, inputs, generator, context)
            if chosen and chosen.keys() <= self.members.keys():
                self.asked.update(chosen.keys())
                return chosen
        except Exception:
            # Code of the operator's, which may raise anything.
            pass
        self.counts["policy_failed"] += 1
        first = next(iter(self.members))
        self.asked[first] += 1
        return {first: 1.0}

    def _check(self, context: str) -> None:
        if not self.spec.context:
            raise ValueError(
                f"application {self.spec.name!r} keeps no state for each context: its key context is false"
            )
        if len(context.encode()) > MOST_CONTEXT_BYTES:
            raise ValueError(
                f"the context has {len(context.encode())} bytes; it may have {MOST_CONTEXT_BYTES}"
            )

    def combine(
        self,
        now_ns: int,
        inputs: Inputs,
        selected: Mapping[str, float],
        outputs: Mapping[str, Array],
        context: str | None = None,
    ) -> Reply:
        """Return the answer of the selected members, with what came of their outputs, ``(rows, ...)`` each.

        What is missing is replaced by its member's running average. Outputs are kept until feedback comes,
        and so are inputs if the policy reads them then. Raises ValueError if nothing came.
        """
        if not outputs:
            raise ValueError("no member has an output")
        rows = len(next(iter(outputs.values())))
        for member, output in outputs.items():
            self._averages.add(member, output)
        missing = tuple([member for member in selected if member not in outputs])
        asked = {
            member: Selected(probability, outputs[member])
            if member in outputs
            else Selected(probability, self._averages.of(member, rows), missing=True)
            for member, probability in selected.items()
        }
        # The application may have been changed since it selected: its successor has the contexts.
        state = self.policy.completed(self.contexts.state(now_ns, context))
        answer = self._combined(state, inputs, asked)
        kept = inputs if self.keeps_inputs else {}
        query_id = self.ledger.add(now_ns, Answered(context, kept, asked, answer))
        low = (False,) * rows
        if self.spec.confidence is not None:
            low = tuple((answer.confidence < self.spec.confidence).tolist())
            self.counts["defaults"] += sum(low)
        if missing:
            self.counts["missing"] += len(missing)
            self.lacked.update(missing)
        answered_rows, sure = self.confidence
        self.confidence = answered_rows + rows, sure + float(answer.confidence.sum())
        shared = self.journal is not None and not self.journal.known(context)
        if shared:
            self.counts["shared"] += 1
        return Reply(query_id, answer, missing, low, shared)

    def _combined(self, state: State, inputs: Inputs, asked: Mapping[str, Selected]) -> Answer:
        try:
            return self.policy.combine(state, inputs, asked)
        except Exception:
            # Code of the operator's, which may raise anything.
            self.counts["policy_failed"] += 1
        first = next(name for name, each in asked.items() if each.output is not None and not each.missing)
        output = asked[first].output
        assert output is not None
        return self._output.combine({first: output}, {first: 1.0}, (), len(asked))

    def prediction(self, reply: Reply) -> Array:
        """Return what a reply predicts for each row, the default where too few members agree."""
        found = reply.answer.prediction
        if not any(reply.default):
            return found
        return np.array(
            [
                self.spec.default if low else each
                for each, low in zip(found.tolist(), reply.default, strict=True)
            ]
        )

    def observe(
        self,
        now_ns: int,
        query_id: int,
        truth: Array | None = None,
        *,
        reward: Sequence[float] | None = None,
        rows: Sequence[int] | None = None,
    ) -> list[Feedback]:
        """Learn what came true of a query; return what became of the feedback for each row.

        ``truth`` has a label or value for each of ``rows``, by default the first ones on; ``reward``, in its
        place, a number from 0 to 1, which counts for the members that agreed with the answer. Raises
        ValueError if neither or both are given, or if a label, value, loss or reward can't be.
        """
        if (truth is None) == (reward is None):
            raise ValueError("give either what is true or a reward")
        given = truth if truth is not None else np.asarray(reward, np.float64)
        assert given is not None
        at = list(range(len(given))) if rows is None else list(rows)
        if len(at) != len(given):
            raise ValueError(f"there are {len(given)} labels, values or rewards for {len(at)} rows")
        self._check_feedback(given, self.ledger.find(query_id), rewards=truth is None)
        answered, fresh, told = self.ledger.join(now_ns, query_id, at)
        self.counts.update(each.value for each in told)
        if answered is None:
            return told
        if len(fresh) < len(answered.answer.prediction) or fresh != at:
            place = {row: index for index, row in reversed(list(enumerate(at)))}
            given, answered = given[[place[row] for row in fresh]], _rows_of(answered, fresh)
        self._learn(now_ns, answered, given, rewards=truth is None)
        return told

    def _check_feedback(self, given: Array, answered: Answered | None, *, rewards: bool) -> None:
        numbers = np.issubdtype(given.dtype, np.number) or given.dtype == np.bool_
        if (rewards or self.spec.kind != "label") and not numbers:
            raise ValueError(
                f"feedback of kind {self.spec.kind!r} is a number for each row, not {given.dtype}"
            )
        whole = given.dtype.kind in "iub"
        if numbers and not whole and not np.isfinite(given).all():
            raise ValueError("feedback has NaN or infinity: leave out the rows of which nothing is known")
        if not len(given) or not (rewards or self.spec.kind == "scores"):
            return
        least, most = given.min(), given.max()
        if rewards:
            if not (least >= 0 and most <= 1):
                raise ValueError(f"a reward is from 0 to 1, not {least:g} to {most:g}")
            return
        scores = None if answered is None else answered.answer.scores
        classes = math.inf if scores is None else scores.shape[1]
        if least < 0 or most >= classes or (not whole and (given != np.floor(given)).any()):
            least_to_most = "from 0 on" if scores is None else f"from 0 to {classes - 1}"
            raise ValueError(f"with kind 'scores' what is true is the number of a class, {least_to_most}")

    def _learn(self, now_ns: int, answered: Answered, given: Array, *, rewards: bool) -> None:
        """Learn from feedback for all rows of an answer."""
        answer = answered.answer
        asked = {member: each for member, each in answered.selected.items() if member in self.members}
        if rewards:
            losses = self._losses_of_rewards(answer.prediction, asked, given)
            own = (1 - given).tolist()
        else:
            outputs = {
                member: each.output
                for member, each in asked.items()
                if each.output is not None and not each.missing
            }
            outputs[""] = answer.prediction if answer.scores is None else answer.scores
            losses = self._output.losses_of(given, outputs)
            own = losses.pop("")

        def change(state: State) -> State:
            try:
                if rewards or not self.keeps_inputs:
                    return self.policy.learn(state, losses, asked)
                return self.policy.observe(state, answered.inputs, given, asked)
            except Exception:
                # Code of the operator's, which may raise anything.
                self.counts["policy_failed"] += 1
                return state

        self.contexts.update(now_ns, answered.context, change)
        losses[""] = own
        for name, each in losses.items():
            count, total = self.losses.get(name, (0, 0.0))
            self.losses[name] = (count + len(each), total + sum(each))

    def _losses_of_rewards(
        self, prediction: Array, asked: Mapping[str, Selected], given: Array
    ) -> dict[str, list[float]]:
        """Return 1 less the reward for each row in which a member agreed with the answer."""
        found = {}
        for member, each in asked.items():
            if each.output is not None and not each.missing:
                agreed = self._output.agreeing(prediction, each.output)
                found[member] = (1 - given[agreed]).tolist()
        return found


def _rows_of(answered: Answered, rows: Sequence[int]) -> Answered:
    """Return some rows of an answer, as copies."""
    at = list(rows)
    inputs = {name: each[at] for name, each in answered.inputs.items()}
    selected = {
        member: Selected(each.probability, None if each.output is None else each.output[at], each.missing)
        for member, each in answered.selected.items()
    }
    whole = answered.answer
    scores = None if whole.scores is None else whole.scores[at]
    answer = Answer(whole.prediction[at], whole.confidence[at], scores)
    return Answered(answered.context, inputs, selected, answer)
