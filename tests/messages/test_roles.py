"""Every message, said by every role to every other: taken where the table has it, else refused in words."""

from __future__ import annotations

import itertools
import typing

import msgspec
import pytest

from mainspring.messages import actions, following, learning, observing, operating, peers, repository, scaling
from mainspring.messages.roles import MAY_SAY, Role, fault, may_connect

MESSAGES = sorted(
    {
        each
        for module in (actions, following, learning, observing, operating, peers, repository, scaling)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__struct_config__.tag
    },
    key=lambda each: each.__name__,
)
PAIRS = list(itertools.product(Role, Role))


def blank(kind: type[msgspec.Struct]) -> msgspec.Struct:
    """Return a message of a kind, whatever is in it."""
    return kind(*[None] * len(kind.__struct_fields__))


@pytest.mark.parametrize(("sender", "receiver"), PAIRS)
def test_each_role_says_its_own_messages_only(sender: Role, receiver: Role) -> None:
    allowed = MAY_SAY.get((sender, receiver), frozenset())
    for kind in MESSAGES:
        why = fault(sender, receiver, blank(kind))
        if kind in allowed:
            assert why is None
        else:
            assert why is not None
            assert f"{sender} may not send {kind.__name__} to the {receiver}" in why


def test_what_changes_the_cluster_is_in_few_mouths() -> None:
    def who(kind: type[msgspec.Struct]) -> set[tuple[Role, Role]]:
        return {pair for pair, kinds in MAY_SAY.items() if kind in kinds}

    assert who(operating.Operate) == {(Role.OPERATOR, Role.CONTROLLER)}
    assert who(peers.WorkerHello) == {(Role.WORKER, Role.CONTROLLER)}
    assert who(actions.Result) == {(Role.WORKER, Role.CONTROLLER)}
    assert who(peers.AdminRequest) == {(Role.GATEWAY, Role.CONTROLLER), (Role.REPOSITORY, Role.CONTROLLER)}
    assert who(peers.Arrival) == {(Role.GATEWAY, Role.CONTROLLER)}
    assert who(peers.Input) == {(Role.GATEWAY, Role.WORKER)}
    assert who(repository.UnloadModel) == {(Role.GATEWAY, Role.REPOSITORY)}
    assert who(operating.Operated) == {(Role.CONTROLLER, Role.OPERATOR)}
    assert who(observing.Devices) == {(Role.CONTROLLER, Role.OBSERVER), (Role.CONTROLLER, Role.OPERATOR)}


def test_the_table_and_the_vocabularies_are_the_same() -> None:
    def said(receiver: Role) -> set[type]:
        return {kind for (_, to), kinds in MAY_SAY.items() if to is receiver for kind in kinds}

    vocabulary = {*typing.get_args(peers.ToController | observing.FromObserver), actions.Result}
    vocabulary.add(following.FollowerHello)
    assert said(Role.CONTROLLER) == vocabulary
    assert MAY_SAY[Role.CONTROLLER, Role.GATEWAY] == set(typing.get_args(peers.ToGateway))
    assert said(Role.WORKER) == {*typing.get_args(peers.ToWorker | actions.Action), peers.Input}


def test_who_connects_where() -> None:
    assert set(may_connect(Role.CONTROLLER)) == set(Role) - {Role.CLIENT}
    assert may_connect(Role.CLIENT) == (Role.GATEWAY,)
    assert Role.OBSERVER not in may_connect(Role.WORKER)
    assert may_connect(Role.OPERATOR) == (Role.CONTROLLER,)
