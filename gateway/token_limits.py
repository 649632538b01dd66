"""The limits of tokens at one of several gateways: what is in flight, and the parts that are used here.

A gateway alone has all of every token's limits. Where there are several, the controller hands out parts
(`controller.token_limits`), and each gateway reports what is asked of it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mainspring.gateway.core.accounts import Account
from mainspring.gateway.core.effects import Accepted, Dispatched
from mainspring.gateway.core.requests import Pending
from mainspring.gateway.core.validation import BadRequest
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.limits import MOST_TOKENS, TokenPart, TokenParts, TokensUsed, TokenUse
from mainspring.messages.peers import Output
from mainspring.transport.tokens import Credential, Gate, Token

REPORT_NS: Final = 200_000_000
"""Time between two reports."""


class Accounts:
    """An observer of the request table: an account is relieved of a request that ends."""

    def answered(
        self, now_ns: int, request: Pending, dispatch: Dispatched | None, output: Output | None
    ) -> None:
        """Relieve its account of a request."""
        del now_ns, dispatch, output
        self._ended(request)

    def refused(self, request: Pending, reason: Reason) -> None:
        """Relieve its account of a request."""
        del reason
        self._ended(request)

    def turned_away(self, request: InferRequest, reason: Reason) -> None:
        """Do nothing: no account has it."""

    def _ended(self, request: Pending) -> None:
        account = request.accepted.account
        if account is not None:
            account.in_flight -= 1
            account.in_flight_bytes -= request.input_bytes


class TokenLimits:
    """The accounts of a gateway's tokens, and its parts of their limits."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._accounts: dict[str, tuple[Token, Account]] = {}
        """The account of each token that has one and was used, by the token's SHA-256."""
        self._parts: dict[str, TokenPart] = {}
        self._sequence = 0
        self.gateways = 1
        """Number of gateways that share the limits; 0 while it is not known how many."""
        self._report_ns = 0
        self._over: set[str] = set()
        """Tokens that had more in flight than their part at the last report."""

    def charged(self, accepted: Accepted, shown: Credential, input_bytes: int) -> Accepted:
        """Return a request with the account of its token, which it is entered in.

        Raises `BadRequest` if it may have no more in flight.
        """
        token = self._gate.token_of(shown)
        if token is None or not token.has_account:
            return accepted
        account = self._account(token)
        refusal = account.take(input_bytes)
        if refusal is not None:
            raise BadRequest(*refusal)
        return msgspec.structs.replace(accepted, account=account)

    def welcomed(self, gateways: int) -> None:
        """Start over with a controller that knows of so many gateways; 0: it has yet to say of how many."""
        self.gateways, self._sequence, self._report_ns = gateways, 0, 0
        self._parts.clear()
        self._apply()

    def told(self, now_ns: int, message: TokenParts) -> TokensUsed:
        """Go by the controller's parts from now on; return the answer."""
        self.gateways, self._sequence = message.gateways, message.sequence
        self._parts |= message.parts
        self._apply()
        return self.report(now_ns)

    def report_due(self, now_ns: int) -> bool:
        """Say whether it is time to report."""
        return self.gateways > 1 and now_ns >= self._report_ns

    def report(self, now_ns: int) -> TokensUsed:
        """Return what was asked for since the last report, of the tokens with limits."""
        self._report_ns = now_ns + REPORT_NS
        used = {token.name: self._use(token, asked) for token, asked in self._gate.asked()[:MOST_TOKENS]}
        # Of those with more in flight than their part the controller has to learn when they have not.
        over = {token.name for token, account in self._accounts.values() if account.is_over}
        for token, _ in self._accounts.values():
            if token.name in over | self._over and token.name not in used:
                used[token.name] = self._use(token, 0)
        self._over = over
        return TokensUsed(self._sequence, tuple(used.values())[:MOST_TOKENS])

    def next_ns(self) -> int | None:
        """Return when `report_due` may say so next; None for never."""
        return self._report_ns if self.gateways > 1 else None

    def _account(self, token: Token) -> Account:
        before, account = self._accounts.get(token.sha256, (None, None))
        if account is None:
            account = Account(token.tenant, token.name)
        if before is not token:
            account.tenant, account.name = token.tenant, token.name
            self._accounts[token.sha256] = token, account
            self._bound(token, account)
        return account

    def _use(self, token: Token, asked: int) -> TokenUse:
        _, account = self._accounts.get(token.sha256, (None, None))
        held = (0, 0) if account is None else (account.in_flight, account.in_flight_bytes)
        return TokenUse(token.name, token.in_flight, token.in_flight_bytes, asked, *held)

    def _apply(self) -> None:
        self._gate.have(self._rate_of)
        for token, account in self._accounts.values():
            self._bound(token, account)

    def _rate_of(self, token: Token) -> float:
        part = self._parts.get(token.name)
        if part is not None:
            return part.rate
        return 1.0 / self.gateways if self.gateways else 0.0

    def _bound(self, token: Token, account: Account) -> None:
        part, gateways = self._parts.get(token.name), self.gateways
        most, most_bytes = token.in_flight, token.in_flight_bytes
        if most is not None:
            most = part.in_flight if part is not None else most // gateways if gateways else 0
        if most_bytes is not None:
            most_bytes = (
                part.in_flight_bytes if part is not None else most_bytes // gateways if gateways else 0
            )
        account.most, account.most_bytes = most, most_bytes
