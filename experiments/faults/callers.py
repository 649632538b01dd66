"""Clients of three kinds that ask without end and keep account of every reply: one each, and a right one."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mainspring.client.client import Client
from mainspring.client.connection import Connection
from mainspring.client.errors import GatewayUnreachable, MainspringError
from mainspring.messages.clients import ErrorReply, InferReply, InferRequest, ToClient
from mainspring.messages.peers import TensorHeader

SLO_MS = 1_000
PATIENCE_S = 12.0
"""After its SLO, how long a reply may take before it counts as missing."""
TOLERANCE = 1e-4
"""Relative, and to the largest output: kernels round otherwise at other batch sizes."""

Array = npt.NDArray[np.float32]


class Case:
    """A model, one input and what ONNX Runtime computes of it from the original file."""

    def __init__(self, model: str, source: str, data: Array, target: str, expected: Array) -> None:
        self.model = model
        self.source = source
        """The input's name."""
        self.data = data
        self.target = target
        """The output's name."""
        self.expected = expected

    def outcome(self, found: Array) -> str:
        """Return whether outputs are what they should be."""
        largest = float(np.abs(self.expected).max())
        right = found.shape == self.expected.shape and np.allclose(
            found, self.expected, rtol=TOLERANCE, atol=TOLERANCE * largest
        )
        return "right" if right else "WRONG"


class Caller(threading.Thread):
    """One client; ``outcomes`` counts how its requests ended, in capitals what must not be."""

    kind = ""

    def __init__(self, cases: list[Case], seed: int, address: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.outcomes: Counter[str] = Counter()
        self._cases = cases
        self._random = random.Random(seed)
        self._address = address
        self._stop_asking = stop

    def case(self) -> Case:
        """Choose what to ask next."""
        return self._random.choice(self._cases)


class PythonCaller(Caller):
    """Uses `Client`, one request at a time."""

    kind = "Client"

    def run(self) -> None:
        """Ask until told to stop."""
        with Client(self._address, connect_timeout_s=60) as client:
            while not self._stop_asking.is_set():
                case = self.case()
                begin_s = time.monotonic()
                try:
                    result = client.infer(case.model, {case.source: case.data}, slo_ms=SLO_MS)
                    self.outcomes[case.outcome(np.asarray(result[case.target]))] += 1
                except GatewayUnreachable:
                    self.outcomes["connection lost"] += 1
                    time.sleep(0.1)
                except MainspringError as error:
                    self.outcomes[str(error.reason or type(error).__name__)] += 1
                if time.monotonic() - begin_s > SLO_MS / 1e3 + PATIENCE_S:
                    self.outcomes["MISSING"] += 1


class HttpCaller(Caller):
    """Uses the Open Inference Protocol over HTTP, one request at a time on one connection."""

    kind = "HTTP"

    def run(self) -> None:
        """Ask until told to stop."""
        while not self._stop_asking.is_set():
            line = http.client.HTTPConnection(self._address, timeout=SLO_MS / 1e3 + PATIENCE_S)
            try:
                while not self._stop_asking.is_set():
                    self.outcomes[self._ask(line)] += 1
            except TimeoutError:
                self.outcomes["MISSING"] += 1
            except (OSError, http.client.HTTPException):
                self.outcomes["connection lost"] += 1
                time.sleep(0.1)
            finally:
                line.close()

    def _ask(self, line: http.client.HTTPConnection) -> str:
        case, number = self.case(), str(self._random.getrandbits(48))
        tensor = {
            "name": case.source,
            "datatype": "FP32",
            "shape": list(case.data.shape),
            "data": case.data.ravel().tolist(),
        }
        body = {"id": number, "inputs": [tensor], "parameters": {"timeout": SLO_MS * 1000}}
        line.request("POST", f"/v2/models/{case.model}/infer", json.dumps(body))
        reply = line.getresponse()
        found = json.loads(reply.read())
        if reply.status != http.client.OK:
            return str(found.get("reason") or f"status {reply.status}")
        if found["id"] != number:
            return "WRONG ID"
        output = {each["name"]: each for each in found["outputs"]}[case.target]
        return case.outcome(np.array(output["data"], np.float32).reshape(output["shape"]))


class RawCaller(Caller):
    """Uses the messages themselves, many requests at a time, and counts the replies to each key."""

    kind = "messages"
    IN_FLIGHT = 8

    def run(self) -> None:
        """Ask until told to stop, then wait for what is out."""
        out: dict[int, tuple[Case, float]] = {}
        seen: set[int] = set()
        with Connection(self._address, name="faults") as connection:
            connection.open(60)
            lost, key = connection.link_lost, 0
            while out or not self._stop_asking.is_set():
                while len(out) < self.IN_FLIGHT and not self._stop_asking.is_set():
                    key += 1
                    case = self.case()
                    if not self._send(connection, key, case):
                        break
                    out[key] = case, time.monotonic()
                connection.poll(20)
                while (received := connection.receive()) is not None:
                    self._take(received, out, seen)
                if connection.link_lost != lost:
                    # What was in flight went with the gateway, and every client is told of that.
                    self.outcomes["connection lost"] += len(out)
                    seen.update(out)
                    out.clear()
                    lost = connection.link_lost
                for late in [key for key, (_, at_s) in out.items() if self._overdue(at_s)]:
                    self.outcomes["MISSING"] += 1
                    seen.add(late)
                    del out[late]

    def _overdue(self, at_s: float) -> bool:
        return time.monotonic() - at_s > SLO_MS / 1e3 + PATIENCE_S

    def _send(self, connection: Connection, key: int, case: Case) -> bool:
        header = TensorHeader(case.source, "float32", case.data.shape)
        try:
            connection.send(InferRequest(key, case.model, (header,), SLO_MS * 1_000_000), [case.data])
        except MainspringError:
            return False
        return True

    def _take(
        self, received: tuple[ToClient, list[memoryview]], out: dict[int, tuple[Case, float]], seen: set[int]
    ) -> None:
        message, frames = received
        if not isinstance(message, InferReply | ErrorReply):
            return
        if message.key not in out:
            self.outcomes["SECOND REPLY" if message.key in seen else "UNKNOWN KEY"] += 1
            return
        case, _ = out.pop(message.key)
        seen.add(message.key)
        if isinstance(message, ErrorReply):
            self.outcomes[str(message.reason)] += 1
            return
        places = {header.name: index for index, header in enumerate(message.outputs)}
        header = message.outputs[places[case.target]]
        data = np.frombuffer(frames[places[case.target]], np.float32)
        self.outcomes[case.outcome(data.reshape(header.shape))] += 1


def faults_of(outcomes: Mapping[str, int]) -> dict[str, int]:
    """Return what must not be: wrong, missing and second replies."""
    return {what: count for what, count in outcomes.items() if what.isupper()}
