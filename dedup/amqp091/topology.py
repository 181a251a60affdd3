"""
Build, take down and list what surrounds a guarded queue.

For a queue ``orders``, the *target*, which stays as it is::

    publishers -> orders.dedup -> shim -> orders.dedup.forward -> orders -> consumers
                  (ingress)        |      (fanout; alternate: orders.dedup.quarantine)
                                   +----> orders.dedup.quarantine -> orders.quarantine
                                   |      (fanout; alternate: orders.dedup.strays -> orders.dedup.ledger)
                                   +----> orders.dedup.ledger
                                   +----> orders.dedup.audit -> collector

Everything is durable, and every request may be repeated: what is there and right stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from attrs import frozen

from dedup.amqp091.administration import Administration, QueueType, TargetType, administration
from dedup.amqp091.facts import Binding, QueueFacts
from dedup.amqp091.inspection import exactness, missing
from dedup.amqp091.management import Management
from dedup.core import names
from dedup.errors import ConfigError, TopologyError

#: What the audit is told waits for its collector in so many bytes; then the oldest goes, and the audit says so.
#: One collector at a time takes it.
_AUDIT: Final = {"x-max-length-bytes": 1 << 30, "x-single-active-consumer": True}
#: AMQP's limit for the name of a queue or an exchange, in bytes.
_NAME_BYTES_MAX: Final = 255


@frozen
class Guard:
    """
    What guard() or unguard() did beside declaring or deleting.
    """

    queue: str
    #: Bindings copied to the new place, or moved there.
    bindings: tuple[Binding, ...] = ()
    #: Each with its fix.
    warnings: tuple[str, ...] = ()


@frozen
class Listed:
    """
    One guarded queue of a virtual host.
    """

    queue: str
    #: "classic", "quorum" or "stream"; empty when the target itself is missing.
    target_type: str
    #: Messages in ingress, target and quarantine; None when the broker does not say.
    waiting: int | None
    messages: int | None
    quarantined: int | None
    exact_possible: bool
    #: Why exact forwarding is possible, or why not.
    reason: str
    #: A shim holds the ledger.
    shim: bool


def guard(
    amqp: str | Iterable[str],
    queue: str,
    *,
    management: Management | None = None,
    declare: TargetType | None = None,
    kind: QueueType = "classic",
    bindings: Literal["leave", "copy", "move"] = "leave",
) -> Guard:
    """
    Build what surrounds *queue*; what is there and right stays as it is.

    Whoever publishes to *queue* through the default exchange has to publish to its ingress from now
    on (the SDK does: ``queue="orders"``). For publishers to other exchanges there are *bindings*:

    - ``leave`` them as they are, straight to the target;
    - ``copy`` them to the ingress: from then on each message comes **both** ways, until the old
      bindings are removed; for a change-over by hand while publishers are paused;
    - ``move`` them: each is made at the ingress first and removed from the target then, so nothing
      is lost; a message published in between comes both ways and is in the target twice, unmarked.
      Pause publishers meanwhile if that matters.

    Args:
        amqp: URLs of one cluster; the virtual host is theirs.
        management: Needed for *bindings* other than "leave".
        declare: Declare the target too, durable, of this type.
        kind: Type of ingress and quarantine. Quorum queues survive the loss of a node, and rule out
            exact forwarding.
        bindings: What to do about the bindings of the target.

    Raises:
        TopologyError: the target is missing, or something exists and is not what is needed.
        ConfigError: *queue* cannot be guarded under this name.
    """
    _check_name(queue)
    with administration(amqp) as broker:
        if declare is not None:
            broker.declare_queue(queue, {"x-queue-type": declare})
        elif broker.count(queue) is None:
            raise TopologyError(missing("queue", queue, "declare it first, or let guard do it (--declare)"))
        _surround(broker, queue, kind)
        moved: tuple[Binding, ...] = ()
        if bindings != "leave":
            own = names.forward_exchange(queue)
            moved = _rebind(broker, management, queue, names.ingress(queue), move=bindings == "move", own=own)
    return Guard(queue, moved, _doubtful(moved))


def unguard(
    amqp: str | Iterable[str],
    queue: str,
    *,
    management: Management | None = None,
    bindings: Literal["refuse", "move", "drop"] = "refuse",
    force: bool = False,
) -> Guard:
    """
    Delete what guard() made, and never the target.

    Publishers and shim must have stopped, in this order, so that the ingress is empty.

    Args:
        management: Needed for *bindings* other than "drop".
        bindings: What to do about bindings of the ingress: "refuse" to go on when there are any,
            "move" them to the target (with the same moment of overlap as in guard()), or "drop" them.
        force: Also delete an ingress or quarantine that holds messages, with the messages, and
            under a shim that runs.

    Raises:
        TopologyError: messages, consumers or bindings are in the way; nothing was deleted.
    """
    ingress, quarantine = names.ingress(queue), names.quarantine(queue)
    with administration(amqp) as broker:
        if not force:
            _refuse_in_use(broker, queue)
        moved: tuple[Binding, ...] = ()
        if bindings != "drop" and broker.count(ingress) is not None:
            moved = _free(broker, management, ingress, queue, move=bindings == "move")
        atomic = not force
        for name in (ingress, quarantine):
            _delete(broker, name, if_idle=atomic)
        broker.delete_exchange(names.forward_exchange(queue))
        broker.delete_exchange(names.quarantine_exchange(queue))
        broker.delete_exchange(names.strays_exchange(queue))
        broker.delete_queue(names.ledger(queue))
        broker.delete_queue(names.audit(queue))
    return Guard(queue, moved, _doubtful(moved))


def guarded(amqp: str | Iterable[str], management: Management) -> list[Listed]:
    """
    Return the guarded queues of the URL's virtual host, by name: those with an ingress and a ledger.
    """
    with administration(amqp) as broker:
        facts = {found.name: found for found in management.queues(broker.vhost)}
        nodes = management.nodes()
        found = []
        for name in sorted(facts):
            queue = name.removesuffix(names.ingress(""))
            if queue == name or names.ledger(queue) not in facts:
                continue
            found.append(_listed(broker, queue, facts, nodes))
    return found


def _listed(broker: Administration, queue: str, facts: dict[str, QueueFacts], nodes: Sequence[str]) -> Listed:
    target, quarantine = facts.get(queue), facts.get(names.quarantine(queue))
    exact, reason = exactness(target, quarantine, nodes)
    held = broker.count(names.ledger(queue))
    return Listed(
        queue,
        target.type if target else "",
        facts[names.ingress(queue)].messages,
        target.messages if target else None,
        quarantine.messages if quarantine else None,
        exact,
        reason,
        shim=held is not None and held.consumers > 0,
    )


# -- building -------------------------------------------------------------------------------------


def _surround(broker: Administration, queue: str, kind: QueueType) -> None:
    """
    Declare everything but the target; the ingress comes last, so that what follows it is there.
    """
    plain = _arguments(broker, kind)
    broker.declare_queue(names.ledger(queue), {"x-queue-type": "classic"})
    broker.declare_exchange(names.strays_exchange(queue), {})
    broker.bind(names.ledger(queue), names.strays_exchange(queue))
    broker.declare_queue(names.quarantine(queue), plain)
    to_ledger = {"alternate-exchange": names.strays_exchange(queue)}
    broker.declare_exchange(names.quarantine_exchange(queue), to_ledger)
    broker.bind(names.quarantine(queue), names.quarantine_exchange(queue))
    broker.declare_queue(names.audit(queue), {**plain, **_AUDIT})
    aside = {"alternate-exchange": names.quarantine_exchange(queue)}
    broker.declare_exchange(names.forward_exchange(queue), aside)
    broker.bind(queue, names.forward_exchange(queue))
    broker.declare_queue(names.ingress(queue), {**plain, "x-single-active-consumer": True})


def _arguments(broker: Administration, kind: QueueType) -> dict[str, Any]:
    arguments: dict[str, Any] = {"x-queue-type": kind}
    if kind == "quorum" and broker.version >= (4, 0):
        # From 4.0 on a message that came back 20 times would be dropped.
        arguments["x-delivery-limit"] = -1
    return arguments


def _check_name(queue: str) -> None:
    longest = max(map(_bytes, (names.forward_exchange(queue), names.quarantine_exchange(queue))))
    if not queue or longest > _NAME_BYTES_MAX:
        room = _NAME_BYTES_MAX - (longest - _bytes(queue))
        raise ConfigError(f"a guarded queue's name has 1 to {room} bytes, this one has {_bytes(queue)}")
    if queue.startswith("amq."):
        raise ConfigError(f"{queue!r}: names that begin with 'amq.' belong to the broker")
    for suffix in (names.ingress(""), names.ledger("")):
        if queue.endswith(suffix):
            raise ConfigError(f"{queue!r} is itself part of a guard; guard {queue.removesuffix(suffix)!r}")


def _bytes(text: str) -> int:
    return len(text.encode())


# -- bindings -------------------------------------------------------------------------------------


def _rebind(
    broker: Administration,
    management: Management | None,
    source: str,
    destination: str,
    *,
    move: bool,
    own: str = "",
) -> tuple[Binding, ...]:
    """
    Make the bindings of queue *source* at *destination* too, then remove them from *source* if *move*.

    Args:
        own: An exchange whose binding stays.
    """
    if management is None:
        raise ConfigError("bindings are seen only through the management API: name it (--management URL)")
    found = [binding for binding in management.bindings(broker.vhost, source) if binding.source != own]
    for binding in found:
        broker.bind(destination, binding.source, binding.routing_key, binding.arguments)
    if move:
        for binding in found:
            management.remove(broker.vhost, binding)
    return tuple(found)


def _doubtful(bindings: Iterable[Binding]) -> tuple[str, ...]:
    """
    Warn of arguments that the management API does not tell in full.
    """
    return tuple(
        f"the binding to exchange {binding.source!r} has a number among its arguments: its size is not "
        "told and was taken to be 32 bits where it fits; if it is a headers exchange, check that it matches"
        for binding in bindings
        if any(type(value) in (int, float) for value in binding.arguments.values())
    )


# -- taking down ----------------------------------------------------------------------------------


def _refuse_in_use(broker: Administration, queue: str) -> None:
    held = broker.count(names.ledger(queue))
    if held is not None and held.consumers:
        raise TopologyError(f"a shim is forwarding {queue!r}: stop it first")
    ingress, quarantine = names.ingress(queue), names.quarantine(queue)
    if held is not None and (strays := broker.count_from(names.ledger(queue), names.leading(queue))):
        raise TopologyError(
            f"queue {names.ledger(queue)!r} holds {strays} messages that found neither target nor quarantine: "
            "run 'dedup queue guard' and let a shim send them on, or give them up (--force)"
        )
    for name, fix in (
        (ingress, "stop the publishers and let a shim forward them"),
        (quarantine, "look at them and move them"),
        (names.audit(queue), "let 'dedup audit collect' take them"),
    ):
        counted = broker.count(name)
        if counted is not None and counted.consumers:
            raise TopologyError(f"queue {name!r} has {counted.consumers} consumers: stop them first")
        if counted is not None and counted.messages:
            raise TopologyError(
                f"queue {name!r} holds {counted.messages} messages: {fix}, or give them up (--force)"
            )


def _free(
    broker: Administration, management: Management | None, ingress: str, queue: str, *, move: bool
) -> tuple[Binding, ...]:
    """
    Move the bindings of the ingress to the target, or refuse to go on when there are any.
    """
    if move:
        return _rebind(broker, management, ingress, queue, move=True)
    if management is None:
        raise ConfigError(
            "bindings of the ingress are seen only through the management API: name it (--management URL), "
            "or let them go unseen (--bindings drop)"
        )
    if found := management.bindings(broker.vhost, ingress):
        exchanges = ", ".join(sorted({repr(binding.source) for binding in found}))
        raise TopologyError(
            f"queue {ingress!r} is bound to {exchanges}: what is published there would be lost; "
            "move the bindings to the target (--bindings move), or let them go (--bindings drop)"
        )
    return ()


def _delete(broker: Administration, name: str, *, if_idle: bool) -> None:
    try:
        broker.delete_queue(name, if_idle=if_idle)
    except TopologyError as error:
        raise TopologyError(f"{error}; let a shim forward what came meanwhile, and repeat") from error
