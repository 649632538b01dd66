"""Shares the limits of tokens out among gateways, so that they hold over all of them together. Pure.

A gateway may have at most its part of a token's limits in use. The parts that gateways go by, and those that
they may have been told since, are never more than the whole: a part is taken from one before it is given to
another, which waits for the first one's answer. A gateway that is gone gives back what it had. Each has some
of every token, and most of it goes to those that are asked for it.

A gateway that comes waits, with no part of anything, until the others have answered that they have one in so
many less. What no message has named is shared evenly.
"""

from __future__ import annotations

from typing import Final

from mainspring.messages.limits import MOST_TOKENS, TokenPart, TokenParts, TokensUsed, TokenUse

EVENLY: Final = 0.2
"""Part of each limit that all gateways share evenly, whatever they are asked for."""
LEAST_CHANGE: Final = 0.05
"""Part of a limit from which on a gateway is told of a change."""
REMEMBERED: Final = 0.7
"""Weight of what was asked of a gateway before its last report."""
TOKENS_KNOWN: Final = 10_000
"""Tokens whose parts follow their use; further ones stay shared evenly."""


class _Gateway:
    """One gateway, and its parts."""

    def __init__(self, count: int) -> None:
        self.count = count
        """The number of gateways that it goes by; 0 while it waits."""
        self.sequence = 0
        """Sequence of the last message to it."""
        self.told: TokenParts | None = None
        """The message that it has not answered yet."""
        self.parts: dict[str, TokenPart] = {}
        """Its parts of tokens that were named to it."""
        self.asked: dict[str, float] = {}
        """Requests that were asked of it lately, by token."""
        self.held: dict[str, TokenPart] = {}
        """Requests and bytes that it had in flight at its last report, by token."""

    def tell(self, count: int, parts: dict[str, TokenPart]) -> TokenParts:
        """Return the next message to it, which it is yet to answer."""
        self.sequence += 1
        self.told = TokenParts(self.sequence, count, parts)
        return self.told


class TokenLimits:
    """The parts of all gateways."""

    def __init__(self) -> None:
        self._gateways: dict[int, _Gateway] = {}
        self._uses: dict[str, TokenUse] = {}
        """The last report of each token, by name: it has the limits."""
        self._unsettled: dict[str, None] = {}
        """Tokens whose parts may have to change."""
        self._turn = 0
        """Count of reports: what can't be divided goes round by it."""

    def joined(self, number: int) -> int:
        """Enter a gateway by its number; return the number of gateways to welcome it with: 1, or 0 if it is
        to wait for its parts."""
        self._gateways.pop(number, None)
        alone = not self._gateways
        self._gateways[number] = _Gateway(1 if alone else 0)
        return 1 if alone else 0

    def left(self, number: int) -> None:
        """A gateway is gone: what it had is free."""
        if self._gateways.pop(number, None) is not None:
            self._unsettled = dict.fromkeys(self._uses)

    def used(self, number: int, message: TokensUsed) -> None:
        """Take a report, which may answer the last message to a gateway."""
        gateway = self._gateways.get(number)
        if gateway is None:
            return
        told = gateway.told
        if told is not None and message.sequence == told.sequence:
            gateway.count, gateway.told = told.gateways, None
            gateway.parts |= told.parts
        else:
            self._turn += 1
        for token in gateway.asked:
            gateway.asked[token] *= REMEMBERED
        for use in message.tokens[:MOST_TOKENS]:
            if use.token in self._uses or len(self._uses) < TOKENS_KNOWN:
                self._uses[use.token] = use
                self._unsettled[use.token] = None
                gateway.asked[use.token] = gateway.asked.get(use.token, 0.0) + use.asked + use.held
                gateway.held[use.token] = TokenPart(0.0, use.held, use.held_bytes)

    def news(self) -> list[tuple[int, TokenParts]]:
        """Return what gateways are to be told now, by their numbers; each has answered what came before."""
        count = len(self._gateways)
        found: list[tuple[int, TokenParts]] = []
        ready = {number: each for number, each in self._gateways.items() if each.told is None}
        if [each for each in self._gateways.values() if each.count not in (0, count)]:
            # First all learn how many they are; those that come have their parts after that.
            for number, gateway in ready.items():
                if gateway.count not in (0, count):
                    found.append((number, gateway.tell(count, self._pinned(gateway))))
            return found
        for number, gateway in ready.items():
            if not gateway.count:
                found.append((number, gateway.tell(count, self._left_over(count))))
                self._unsettled = dict.fromkeys(self._uses)
            elif parts := self._changed(gateway):
                found.append((number, gateway.tell(count, parts)))
        for token in [each for each in self._unsettled if self._is_settled(each)]:
            del self._unsettled[token]
        return found

    def _pinned(self, gateway: _Gateway) -> dict[str, TokenPart]:
        """Return what a gateway has of the tokens that are known, where no message has named them to it."""
        return {
            token: self._part(gateway, use) for token, use in self._uses.items() if token not in gateway.parts
        }

    def _left_over(self, count: int) -> dict[str, TokenPart]:
        """Return what a gateway that comes may have of the tokens that are known."""
        found: dict[str, TokenPart] = {}
        for token, use in self._uses.items():
            even = 1.0 / count, _evenly(use.in_flight or 0, count), _evenly(use.in_flight_bytes or 0, count)
            found[token] = _lesser(even, (0.0, 0, 0), self._free(use))
        return found

    def _changed(self, gateway: _Gateway) -> dict[str, TokenPart]:
        """Return a gateway's parts that are to change, as far as what is free allows."""
        found: dict[str, TokenPart] = {}
        for token in self._unsettled:
            if len(found) == MOST_TOKENS:
                break
            use = self._uses[token]
            now, wanted = self._part(gateway, use), self._wanted(gateway, use)
            new = _lesser(_figures(wanted), _figures(now), self._free(use))
            if token not in gateway.parts or _differ(now, new, use):
                found[token] = new
        return found

    def _is_settled(self, token: str) -> bool:
        """Return whether every gateway goes by about what it should have of a token."""
        use = self._uses[token]
        return all(
            each.told is None
            and token in each.parts
            and not _differ(each.parts[token], self._wanted(each, use), use)
            for each in self._gateways.values()
        )

    def _wanted(self, gateway: _Gateway, use: TokenUse) -> TokenPart:
        """Return the part that a gateway should have of a token, by what is asked of all."""
        everybody = list(self._gateways.values())
        asked = [each.asked.get(use.token, 0.0) for each in everybody]
        total = sum(asked)
        if len(everybody) == 1:
            return TokenPart(1.0, use.in_flight or 0, use.in_flight_bytes or 0)
        if total <= 0:
            return self._part(gateway, use)
        shares = [EVENLY / len(asked) + (1.0 - EVENLY) * each / total for each in asked]
        place = everybody.index(gateway)
        return TokenPart(
            shares[place],
            _whole_parts(use.in_flight or 0, shares, self._turn)[place],
            _whole_parts(use.in_flight_bytes or 0, shares, self._turn)[place],
        )

    def _free(self, use: TokenUse) -> tuple[float, int, int]:
        """Return what no gateway may be using of a token."""
        taken = [self._most(each, use) for each in self._gateways.values()]
        return (
            1.0 - sum(part.rate for part in taken),
            (use.in_flight or 0) - sum(part.in_flight for part in taken),
            (use.in_flight_bytes or 0) - sum(part.in_flight_bytes for part in taken),
        )

    def _most(self, gateway: _Gateway, use: TokenUse) -> TokenPart:
        """Return the most that a gateway may be using of a token: by what it goes by, has, and was told."""
        known = [self._part(gateway, use)]
        if use.token in gateway.held:
            known.append(gateway.held[use.token])
        if gateway.told is not None and use.token in gateway.told.parts:
            known.append(gateway.told.parts[use.token])
        rates, in_flight, in_flight_bytes = zip(*map(_figures, known), strict=True)
        return TokenPart(max(rates), max(in_flight), max(in_flight_bytes))

    def _part(self, gateway: _Gateway, use: TokenUse) -> TokenPart:
        """Return what a gateway goes by of a token."""
        part = gateway.parts.get(use.token)
        if part is not None:
            return part
        count = gateway.count
        return TokenPart(
            1.0 / count if count else 0.0,
            _evenly(use.in_flight or 0, count),
            _evenly(use.in_flight_bytes or 0, count),
        )


def _evenly(limit: int, count: int) -> int:
    return limit // count if count else 0


def _figures(part: TokenPart) -> tuple[float, int, int]:
    return part.rate, part.in_flight, part.in_flight_bytes


def _lesser(
    wanted: tuple[float, int, int], has: tuple[float, int, int], free: tuple[float, int, int]
) -> TokenPart:
    """Return what is wanted, as far as what is free allows beside what is had."""
    return TokenPart(
        min(wanted[0], has[0] + max(0.0, free[0])),
        min(wanted[1], has[1] + max(0, free[1])),
        min(wanted[2], has[2] + max(0, free[2])),
    )


def _differ(one: TokenPart, other: TokenPart, use: TokenUse) -> bool:
    """Say whether any figure of two parts differs by enough, or one of them is nothing."""
    limits = 1.0, use.in_flight or 0, use.in_flight_bytes or 0
    return any(
        abs(before - after) > LEAST_CHANGE * limit or bool(before) != bool(after)
        for before, after, limit in zip(_figures(one), _figures(other), limits, strict=True)
    )


def _whole_parts(limit: int, shares: list[float], turn: int) -> list[int]:
    """Return whole numbers in these shares whose sum is the limit; what is left over goes round by turns."""
    parts = [int(limit * share) for share in shares]
    for place in range(limit - sum(parts)):
        parts[(place + turn // len(parts)) % len(parts)] += 1
    return parts
