"""Requests without an answer, found by each of their names, and the bounds on them. Pure."""

from __future__ import annotations

from mainspring.gateway.bounds import Refusal, no_room
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.pending import Pending, Timers
from mainspring.gateway.sends import Connection
from mainspring.messages.codes import Reason


class Table:
    """Every pending request, by serial, by the ids that controllers know it by, and by its client's key."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self.pending: dict[int, Pending] = {}
        """By serial, in the order of arrival."""
        self.by_id: dict[int, Pending] = {}
        """By every id that it was ever submitted under."""
        self._by_connection: dict[Connection, dict[int, Pending]] = {}
        self._input_bytes = 0
        self.timers = Timers(self.pending)

    def __len__(self) -> int:
        return len(self.pending)

    def of_connection(self, connection: Connection) -> list[Pending]:
        """Return a connection's requests."""
        return list(self._by_connection.get(connection, {}).values())

    def count_of(self, connection: Connection) -> int:
        """Return how many requests a connection has."""
        return len(self._by_connection.get(connection, ()))

    def find(self, connection: Connection, key: int) -> Pending | None:
        """Return the request that its client calls by a key."""
        return self._by_connection.get(connection, {}).get(key)

    def refusal(self, request: Pending) -> Refusal | None:
        """Return why a request can't be added, if it can't."""
        if self.find(request.connection, request.key) is not None:
            return Reason.DUPLICATE_KEY, f"a request with key {request.key} is in flight on this connection"
        return no_room(
            self._config,
            on_connection=self.count_of(request.connection),
            in_flight=len(self.pending),
            held_bytes=self._input_bytes,
            more_bytes=request.input_bytes,
        )

    def add(self, request: Pending) -> None:
        """Enter a request."""
        self.pending[request.serial] = request
        self._by_connection.setdefault(request.connection, {})[request.key] = request
        self._input_bytes += request.input_bytes

    def name(self, request: Pending, request_id: int) -> None:
        """Have a request known by an id from now on, beside those that it had."""
        request.request_id = request_id
        request.ids.append(request_id)
        self.by_id[request_id] = request

    def remove(self, request: Pending) -> None:
        """Forget a request."""
        del self.pending[request.serial]
        for each in request.ids:
            del self.by_id[each]
        own = self._by_connection[request.connection]
        del own[request.key]
        if not own:
            del self._by_connection[request.connection]
        self._input_bytes -= request.input_bytes

    def validate(self) -> None:
        """Check that every index says the same; raise AssertionError with the story of what does not."""
        for request in self.pending.values():
            own = self.find(request.connection, request.key)
            assert own is request, f"not under its key: {request.story()}"
            lost = [each for each in request.ids if self.by_id.get(each) is not request]
            assert not lost, f"ids {lost} do not lead to {request.story()}"
            known = request.request_id is None or request.request_id == request.ids[-1]
            assert known, f"not known by its last id: {request.story()}"
        armed = self.timers.armed()
        assert armed == {r.serial: r.wake_ns for r in self.pending.values()}, f"timers {armed}"
        assert len(self.by_id) == sum(len(r.ids) for r in self.pending.values()), "ids of answered requests"
        keys = sum(map(len, self._by_connection.values()))
        assert keys == len(self.pending), f"{keys} keys for {len(self.pending)} requests"
        assert all(self._by_connection.values()), "a connection without requests"
        held = sum(r.input_bytes for r in self.pending.values())
        assert held == self._input_bytes, f"{held} bytes held, {self._input_bytes} counted"
