"""Tokens: what a file of them may hold, who may pass, and how often."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.client.client import Client
from mainspring.client.connection import Connection
from mainspring.client.errors import ERROR_OF_REASON, Forbidden, RateLimited, Unauthenticated
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.oip.errors import STATUSES
from mainspring.messages.codes import Reason
from mainspring.transport.tokens import (
    BadTokens,
    Gate,
    Refusal,
    Token,
    TokenFile,
    credential,
    headers_of,
    parse_tokens,
    read_token,
    token_sha256,
)
from tests.gateway.fakes import fake_cluster, gateway, make_spec, wait_until
from tests.patience import PATIENCE_S

S = 1_000_000_000


def token(secret: str, name: str = "t", models: tuple[str, ...] = ("*",), **options: Any) -> Token:
    return Token(name=name, sha256=token_sha256(secret), models=models, **options)


def reason(refusal: Refusal | None) -> Reason | None:
    return None if refusal is None else refusal[0]


def entry(secret: str, name: str = "t", models: str = '["*"]', more: str = "") -> str:
    return f'[[token]]\nname = "{name}"\nsha256 = "{token_sha256(secret)}"\nmodels = {models}\n{more}\n'


def replace(path: Path, text: str) -> None:
    """Give a file other contents at once: one that is being written is read as it is at that moment."""
    aside = path.with_name("aside.toml")
    aside.write_text(text)
    aside.replace(path)


def test_every_reason_has_a_status_and_an_exception() -> None:
    assert set(STATUSES) == set(ERROR_OF_REASON) == set(Reason)
    assert [
        STATUSES[each][0] for each in (Reason.UNAUTHENTICATED, Reason.FORBIDDEN, Reason.RATE_LIMITED)
    ] == [
        401,
        403,
        429,
    ]


def test_without_tokens_everybody_may_do_everything() -> None:
    gate = Gate()
    assert not gate.closed
    assert gate.authorise(None, "m", 0, administers=True) is None
    assert gate.known(credential("")) is None
    assert gate.may_see(credential(""), "m")


def test_an_empty_list_lets_nobody_pass() -> None:
    gate = Gate([])
    assert reason(gate.authorise("Bearer x", None, 0)) is Reason.UNAUTHENTICATED


@pytest.mark.parametrize(
    "value",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic right", "right", "Bearer right right", "Bearer é"],
)
def test_what_is_no_token_does_not_pass(value: str | None) -> None:
    assert reason(Gate([token("right")]).authorise(value, "m", 0)) is Reason.UNAUTHENTICATED


@pytest.mark.parametrize("value", ["Bearer right", "bearer right", "BEARER   right  "])
def test_a_token_passes(value: str) -> None:
    assert Gate([token("right")]).authorise(value, "m", 0) is None


def test_a_token_absurdly_long_is_none() -> None:
    secret = "x" * 513
    assert reason(Gate([token(secret)]).authorise(f"Bearer {secret}", "m", 0)) is Reason.UNAUTHENTICATED


def test_a_token_may_use_its_models_and_no_other() -> None:
    gate = Gate([token("a", "alice", ("res*", "bert")), token("b", "bob", ())])
    assert gate.authorise("Bearer a", "resnet", 0) is None
    assert gate.authorise("Bearer a", "bert", 0) is None
    assert gate.authorise("Bearer b", None, 0) is None
    refusal = gate.authorise("Bearer a", "bert2", 0)
    assert refusal is not None
    assert refusal[0] is Reason.FORBIDDEN
    assert "alice" in refusal[1]
    assert "res*, bert" in refusal[1]
    assert reason(gate.authorise("Bearer b", "bert", 0)) is Reason.FORBIDDEN
    assert [gate.may_see(credential("a"), name) for name in ("resnet", "vgg")] == [True, False]


def test_only_some_tokens_may_change_what_is_served() -> None:
    gate = Gate([token("a", "alice"), token("r", "root", admin=True)])
    assert reason(gate.authorise("Bearer a", "m", 0, administers=True)) is Reason.FORBIDDEN
    assert gate.authorise("Bearer r", "m", 0, administers=True) is None


def test_a_burst_passes_and_then_the_rate() -> None:
    gate = Gate([token("a", rate=10.0, burst=3)])
    passed = [gate.authorise("Bearer a", "m", 5 * S) is None for _ in range(5)]
    assert passed == [True, True, True, False, False]
    refusal = gate.authorise("Bearer a", "m", 5 * S)
    assert refusal is not None
    assert "10 requests a second" in refusal[1]
    assert refusal[2] == S // 10
    assert headers_of(refusal) == {"Retry-After": "1"}, "whole seconds, rounded up"
    assert gate.authorise("Bearer a", "m", 5 * S + S // 10) is None
    assert reason(gate.authorise("Bearer a", "m", 5 * S + S // 10)) is Reason.RATE_LIMITED
    # After a rest the burst is whole again, and no more than that.
    assert [gate.authorise("Bearer a", "m", 60 * S) is None for _ in range(4)] == [True, True, True, False]


@given(
    rate=st.floats(0.5, 5_000), burst=st.integers(1, 50), steps=st.lists(st.integers(0, S // 4), max_size=200)
)
def test_no_window_holds_more_than_burst_and_rate(rate: float, burst: int, steps: list[int]) -> None:
    gate = Gate([token("a", rate=rate, burst=burst)])
    now_ns, passed = 0, []
    for step in steps:
        now_ns += step
        if gate.authorise("Bearer a", None, now_ns) is None:
            passed.append(now_ns)
    for first, since_ns in enumerate(passed):
        for count, at_ns in enumerate(passed[first:], 1):
            assert count <= burst + (at_ns - since_ns) * rate / S * (1 + 1e-6) + 1e-6


@given(rate=st.integers(1, 1_000), burst=st.integers(1, 20), count=st.integers(1, 60))
def test_who_keeps_to_the_rate_is_never_refused(rate: int, burst: int, count: int) -> None:
    gate = Gate([token("a", rate=float(rate), burst=burst)])
    for number in range(count):
        assert gate.authorise("Bearer a", None, number * (S // rate + 1)) is None


def test_a_token_that_stays_keeps_its_account_and_one_that_goes_does_not_pass() -> None:
    gate = Gate([token("a", rate=1.0), token("b", "u")])
    assert gate.authorise("Bearer a", None, 0) is None
    gate.replace([token("a", rate=1.0, name="renamed")])
    assert reason(gate.authorise("Bearer a", None, 0)) is Reason.RATE_LIMITED
    assert reason(gate.authorise("Bearer b", None, 0)) is Reason.UNAUTHENTICATED


def test_tokens_whose_digests_begin_alike_are_told_apart() -> None:
    one, other = "aa" * 32, "aa" * 31 + "bb"
    gate = Gate(
        [Token(name="one", sha256=one, models=("*",)), Token(name="other", sha256=other, models=("*",))]
    )
    [same] = (gate._holders or {}).values()
    assert len(same) == 2
    assert reason(gate.authorise("Bearer x", None, 0)) is Reason.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("best", "gets"),
    [(None, [0, 1, 2, 3, 9]), (0, [0, 0, 0, 0, 0]), (1, [0, 1, 2, 3, 9]), (3, [0, 3, 3, 3, 9])],
)
def test_a_priority_is_no_better_than_the_token_s_best(best: int | None, gets: list[int]) -> None:
    gate = Gate([token("a", best_priority=best), token("b", "u")])
    assert [gate.priority(credential("a"), asked) for asked in (0, 1, 2, 3, 9)] == gets
    assert gate.priority(credential("b"), 1) == 1
    assert Gate().priority(credential(""), 1) == 1


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[[token", "not TOML"),
        ("[tokens]\na = 1", "'tokens'"),
        ("token = 3", "'token'"),
        ("[[token]]\nname = 'a'", "token 1 .*sha256"),
        ("[[token]]\nname = 'a'\nsha256 = 'abc'\nmodels = []", "64 hexadecimal"),
        (entry("a", more="rat = 3"), "'rat'; did you mean 'rate'"),
        (entry("a", more="rate = 0"), "greater than 0"),
        (entry("a", more="rate = nan"), "greater than 0"),
        (entry("a", more="burst = 3"), "without a rate"),
        (entry("a", more="rate = 1\nburst = 0"), "at least 1"),
        (entry("a", more="best_priority = -1"), "1 for the highest"),
        (entry("a", models='"*"'), "models"),
        (entry("a") + entry("b"), "name 't'"),
        (entry("a", "one") + entry("a", "two"), "sha256"),
    ],
)
def test_a_file_that_makes_no_sense_says_why(text: str, wrong: str) -> None:
    with pytest.raises(BadTokens, match=wrong):
        parse_tokens(text)


@given(st.text(max_size=200))
def test_any_text_is_tokens_or_bad_tokens(text: str) -> None:
    with contextlib.suppress(BadTokens):
        parse_tokens(text)


def token_file(path: Path, **options: Any) -> TokenFile:
    return TokenFile(GatewayConfig(token_file=str(path), token_reload_ms=10.0, **options))


def test_the_file_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(entry("a"))
    tokens = token_file(path, launcher_token_sha256=token_sha256("own"))
    gate = tokens.gate
    assert gate.authorise("Bearer a", None, 0) is None
    assert gate.authorise("Bearer own", "m", 0, administers=True) is None
    path.write_text(entry("b"))
    tokens.tick(0)
    assert reason(gate.authorise("Bearer a", None, 0)) is Reason.UNAUTHENTICATED
    assert gate.authorise("Bearer b", None, 0) is None
    assert gate.authorise("Bearer own", None, 0) is None
    with caplog.at_level(logging.ERROR):
        for number, broken in enumerate(("[[token", "[[toke"), 1):
            path.write_text(broken)
            tokens.tick(number * S)
            assert gate.authorise("Bearer b", None, 0) is None
        path.unlink()
        tokens.tick(3 * S)
        tokens.tick(4 * S)
    assert gate.authorise("Bearer b", None, 0) is None
    assert len(caplog.records) == 3
    assert "No such file" in caplog.text
    replaced = tmp_path / "new"
    replaced.write_text(entry("c"))
    os.replace(replaced, path)
    tokens.tick(5 * S)
    assert gate.authorise("Bearer c", None, 0) is None
    wakeup_ns = tokens.check_ns
    assert wakeup_ns == 5 * S + 10_000_000


@pytest.mark.parametrize("text", [None, "[[token", "\xff"])
def test_a_gateway_does_not_start_without_the_tokens_it_was_told_of(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "tokens.toml"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"tokens\.toml can't be used"):
        token_file(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize(
    ("owner", "mode", "read"),
    [
        *((0, 0o640, True), (0, 0o440, True), (0, 0o660, False), (0, 0o644, False)),
        *((1234, 0o600, True), (1234, 0o640, False), (4321, 0o600, False)),
    ],
)
def test_a_worker_s_own_token_is_its_user_s_or_root_s_alone(
    owner: int, mode: int, read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("ms_token\n")
    path.chmod(mode)
    os.chown(path, owner, 1234)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    if read:
        assert read_token(str(path)) == "ms_token"
    else:
        with pytest.raises(OSError, match="is open to others"):
            read_token(str(path))


def test_a_token_file_that_is_empty_or_missing_is_named(tmp_path: Path) -> None:
    assert read_token("") == ""
    path = tmp_path / "token"
    with pytest.raises(OSError, match="token can't be read: No such file"):
        read_token(str(path))
    path.touch(mode=0o600)
    with pytest.raises(OSError, match="token is empty: write into it"):
        read_token(str(path))


def test_no_file_means_no_tokens() -> None:
    tokens = TokenFile(GatewayConfig())
    assert not tokens.gate.closed
    assert tokens.check_ns is None
    tokens.tick(0)


def test_clients_of_a_gateway_with_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(entry("a", "alice", '["dou*"]') + entry("r", "root", more="admin = true"))
    inputs = {"data": np.array([[1, 2, 3, 4]], np.float32)}
    with (
        fake_cluster() as cluster,
        gateway(cluster.address, token_file=str(path), token_reload_ms=20.0) as address,
    ):
        with Client(address) as nobody, pytest.raises(Unauthenticated, match="a token is needed"):
            nobody.models()
        with Client(address, token="b") as wrong, pytest.raises(Unauthenticated, match="known"):
            wrong.infer("double", inputs)
        with Connection(address, token="b") as refused, pytest.raises(Unauthenticated):
            refused.open(timeout_s=PATIENCE_S)
        monkeypatch.setenv("MAINSPRING_TOKEN", "a")
        with Client(address) as alice:
            assert [spec.name for spec in alice.models()] == ["double"]
            assert [each.name for each in alice.status().models] == ["double"]
            assert alice.infer("double", inputs)["sum"].tolist() == [10.0]
            with pytest.raises(Forbidden, match="alice"):
                alice.infer("reject", inputs)
            with pytest.raises(Forbidden, match="admin"):
                alice.add_model(make_spec("double2"))
            replace(path, entry("a", "alice", more="rate = 0.001\nburst = 1") + entry("r", "root"))
            wait_until(lambda: _refused(alice, inputs))
            # A token that is taken away is refused on connections that stand, too.
            replace(path, entry("r", "root"))
            with pytest.raises(Unauthenticated):
                wait_until(lambda: _refused(alice, inputs) and False)
        with Client(address, token="r") as root:
            assert len(root.status().models) == len(cluster.specs)


def test_a_token_s_best_priority_counts_over_zeromq(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(entry("a", more="best_priority = 3"))
    inputs = {"data": np.array([[1, 2, 3, 4]], np.float32)}
    with (
        fake_cluster() as cluster,
        gateway(cluster.address, token_file=str(path)) as address,
        Client(address, token="a") as client,
    ):
        for priority in (1, 0, 5):
            client.infer("double", inputs, priority=priority)
        assert [each.priority for each in cluster.arrivals] == [3, 0, 5]


def _refused(client: Client, inputs: Any) -> bool:
    try:
        client.infer("double", inputs)
    except RateLimited as error:
        return error.retry_after_s is not None
    return False
