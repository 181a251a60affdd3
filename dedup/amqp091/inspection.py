"""
Look at what surrounds a guarded queue before a shim works with it.

What would lose messages is refused, what only might is a warning, and exact forwarding is declared
possible only where everything it rests on has been seen (DESIGN section 6): transactions end in one
piece on classic queues that cannot refuse, and order holds between queues of one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from attrs import evolve, frozen

from dedup.amqp091.administration import Administration, administration
from dedup.amqp091.facts import ExchangeFacts, QueueFacts
from dedup.amqp091.management import Management
from dedup.core import names
from dedup.errors import BrokerUnavailableError, ConfigError, TopologyError

#: What would take markers away, reorder them, or keep the fence from being an exclusive consumer.
_NOT_FOR_LEDGERS: Final = (
    "message-ttl",
    "max-length",
    "max-length-bytes",
    "expires",
    "max-priority",
    "single-active-consumer",
)
_ACCESS_REFUSED: Final = 403


@frozen
class Inspection:
    """
    What a look at the topology found out.
    """

    #: "classic", "quorum" or "stream"; empty when it could not be seen.
    target_type: str
    exact_possible: bool
    #: Why exact forwarding is possible, or why not.
    reason: str
    #: The target or the quarantine may refuse a message, or nobody knows.
    may_refuse: bool = True
    #: What an operator should mend, each with its fix.
    warnings: tuple[str, ...] = ()
    #: Of a move: the type of what it takes from; empty when it could not be seen.
    source_type: str = ""


def inspect(
    amqp: str | Iterable[str],
    queue: str,
    *,
    management: Management | None = None,
    management_needed: bool = False,
    audit: bool = False,
) -> Inspection:
    """
    Look at everything around *queue*, and bind the target to its exchange again if it lost that.

    Args:
        amqp: URLs of one cluster; the virtual host is theirs.
        management: None: nothing but the existence of queues and exchanges is seen.
        management_needed: Without the management API's answer there is no inspection.
        audit: The audit is told of every arrival.

    Raises:
        TopologyError: something is missing or would lose messages; the message names the fix.
        BrokerUnavailableError: nobody answers.
        ConfigError: login, virtual host or URL is wrong.
    """
    with administration(amqp) as broker:
        warnings = _look_over_amqp(broker, queue, audit=audit)
        vhost, version = broker.vhost, broker.version
    try:
        if management is None:
            raise ConfigError("no management API is named (management = URL)")
        seen = _look_over_management(management, vhost, queue, version)
    except (BrokerUnavailableError, ConfigError) as error:
        if management_needed:
            raise
        unseen = f"neither policies nor arguments can be seen: {error}"
        note = f"limits that would lose messages in {names.ingress(queue)!r} are not checked: {error}"
        seen = Inspection("", exact_possible=False, reason=unseen, warnings=(note,))
    return evolve(seen, warnings=(*warnings, *seen.warnings))


def exactness(
    target: QueueFacts | None, quarantine: QueueFacts | None, nodes: Sequence[str]
) -> tuple[bool, str]:
    """
    Say whether exact forwarding is sound, and why.

    A batch goes to target, quarantine and ledger in one transaction; the ledger is always classic.
    """
    if target is None or quarantine is None:
        return False, "a queue is missing"
    for facts in (target, quarantine):
        if facts.type != "classic":
            return False, f"queue {facts.name!r} is a {facts.type} queue: its transactions may end in pieces"
        if refuses(facts):
            return False, f"queue {facts.name!r} may refuse messages (overflow {facts.settings['overflow']})"
    if len(nodes) != 1:
        return False, f"the cluster has {len(nodes)} nodes: order holds within one"
    return True, "classic queues that cannot refuse, on the broker's only node"


def refuses(facts: QueueFacts) -> bool:
    """
    Say whether a queue refuses what it has no room for.
    """
    overflow = facts.settings.get("overflow")
    return overflow is not None and str(overflow.value).startswith("reject-publish")


def missing(what: str, name: str, fix: str) -> str:
    """
    Word what an operator is told about something that is not there.
    """
    return f"{what} {name!r} does not exist: {fix}"


# -- what AMQP tells ------------------------------------------------------------------------------


def _look_over_amqp(broker: Administration, queue: str, *, audit: bool) -> list[str]:
    fix = f"run 'dedup queue guard {queue}'"
    if broker.count(queue) is None:
        raise TopologyError(missing("queue", queue, f"declare it, or {fix} --declare classic"))
    told = (names.audit(queue),) if audit else ()
    for name in (names.ingress(queue), names.ledger(queue), names.quarantine(queue), *told):
        if broker.count(name) is None:
            raise TopologyError(missing("queue", name, fix))
    for name, _, _ in _ways(queue):
        if not broker.has_exchange(name):
            raise TopologyError(missing("exchange", name, fix))
    return bind_again(broker, queue)


def bind_again(broker: Administration, queue: str) -> list[str]:
    """
    Bind the target to its exchange: one that was deleted and declared again has lost that.

    Returns:
        A warning when the user may not.
    """
    try:
        broker.bind(queue, names.forward_exchange(queue))
    except TopologyError as error:
        if getattr(error, "reply_code", 0) != _ACCESS_REFUSED:
            raise
        text = (
            f"the user may not bind {queue!r} to {names.forward_exchange(queue)!r}: when the queue is declared "
            f"anew, run 'dedup queue guard {queue}', or grant write on the queue and read on the exchange"
        )
        return [text]
    return []


# -- what the management API tells ----------------------------------------------------------------


def _look_over_management(
    management: Management, vhost: str, queue: str, version: tuple[int, ...]
) -> Inspection:
    policies = management.policies(vhost)

    def facts(name: str) -> QueueFacts:
        found = management.queue(vhost, name, policies)
        if found is None:
            raise TopologyError(missing("queue", name, f"run 'dedup queue guard {queue}'"))
        return found

    ingress, target, quarantine = facts(names.ingress(queue)), facts(queue), facts(names.quarantine(queue))
    _refuse(_losses_of_ingress(ingress), ingress, queue)
    ledger = facts(names.ledger(queue))
    _refuse(_losses_of_ledger(ledger), ledger, queue)
    _refuse(_losses_of_any(quarantine), quarantine, queue)
    _check_exchanges(lambda name: management.exchange(vhost, name, policies), queue)
    try:
        exact, reason = exactness(target, quarantine, management.nodes())
    except ConfigError as error:
        exact, reason = False, f"the number of nodes cannot be seen: {error}"
    risks = risks_of_source(ingress, version) + _risks_of_quarantine(quarantine) + _risks_of_target(target)
    return Inspection(target.type, exact, reason, refuses(target) or refuses(quarantine), tuple(risks))


def _refuse(losses: Sequence[str], facts: QueueFacts, queue: str) -> None:
    if losses:
        raise TopologyError(
            f"queue {facts.name!r} would lose messages: {'; '.join(losses)}. Take policies off it; what it was "
            f"declared with changes only by deleting it, once empty, and 'dedup queue guard {queue}'"
        )


def _losses_of_any(facts: QueueFacts) -> list[str]:
    losses = [] if facts.durable else ["it is not durable"]
    return losses + (["it deletes itself (auto-delete)"] if facts.auto_delete else [])


def _losses_of_ingress(facts: QueueFacts) -> list[str]:
    settings = facts.settings
    losses = _losses_of_any(facts)
    losses += [
        f"{key} {settings[key]}" for key in ("message-ttl", "expires", "max-priority") if key in settings
    ]
    overflow = settings.get("overflow")
    if overflow is None or overflow.value == "drop-head":
        limits = ("max-length", "max-length-bytes")
        losses += [f"{key} {settings[key]} (overflow drop-head)" for key in limits if key in settings]
    if not facts.arguments.get("x-single-active-consumer"):
        losses.append("it is without x-single-active-consumer: two shims would take from it")
    if facts.type not in ("classic", "quorum"):
        losses.append(f"it is a {facts.type} queue")
    return losses


def _losses_of_ledger(facts: QueueFacts) -> list[str]:
    losses = _losses_of_any(facts)
    if facts.type != "classic":
        losses.append(f"it is a {facts.type} queue, which keeps what must vanish with a restart")
    return losses + [f"{key} {facts.settings[key]}" for key in _NOT_FOR_LEDGERS if key in facts.settings]


def _ways(queue: str) -> list[tuple[str, str, str]]:
    """
    Return each exchange, the one queue it leads to, and where it leads a message that does not find that; empty: nowhere.
    """
    forward, quarantine = names.leading(queue)
    strays = names.strays_exchange(queue)
    return [
        (forward, queue, quarantine),
        (quarantine, names.quarantine(queue), strays),
        (strays, names.ledger(queue), ""),
    ]


def _check_exchanges(look_at: Callable[[str], ExchangeFacts | None], queue: str) -> None:
    """
    Refuse exchanges that lead elsewhere: a second queue behind one hides that the first is missing.
    """
    for name, destination, aside in _ways(queue):
        facts = look_at(name)
        wrong = []
        if facts is None:
            raise TopologyError(missing("exchange", name, f"run 'dedup queue guard {queue}'"))
        if facts.type != "fanout":
            wrong.append(f"it is a {facts.type} exchange and not a fanout")
        if not facts.durable or facts.auto_delete:
            wrong.append("it is not durable, or deletes itself")
        others = sorted({*facts.destinations} - {destination})
        if others:
            wrong.append(f"it also leads to {', '.join(map(repr, others))}")
        elif not facts.destinations:
            wrong.append(f"it does not lead to {destination!r}")
        alternate = facts.settings.get("alternate-exchange")
        if aside and (alternate is None or alternate.value != aside):
            wrong.append(f"its alternate exchange is {alternate or 'none'} and not {aside!r}")
        if wrong:
            raise TopologyError(
                f"exchange {name!r} would lose messages: {'; '.join(wrong)}. Unbind what is not its own, "
                f"or delete it, then run 'dedup queue guard {queue}'"
            )


def risks_of_source(facts: QueueFacts, version: tuple[int, ...]) -> list[str]:
    """
    Return what may happen to messages that a relay takes and does not acknowledge, each with its fix.
    """
    limit = facts.settings.get("delivery-limit")
    if facts.type != "quorum" or (limit.value < 0 if limit else version < (4, 0)):
        return []
    text = (
        f"quorum queue {facts.name!r} drops messages that shims die with too often (delivery-limit "
        f"{limit or '20 by default'}): set it to -1"
    )
    return [text]


def _risks_of_quarantine(facts: QueueFacts) -> list[str]:
    limits = ("message-ttl", "max-length", "max-length-bytes", "expires")
    found = [f"{key} {facts.settings[key]}" for key in limits if key in facts.settings]
    if not found:
        return []
    return [f"quarantine {facts.name!r} may lose what nobody has looked at: {', '.join(found)}"]


def _risks_of_target(facts: QueueFacts) -> list[str]:
    if facts.durable:
        return []
    return [f"queue {facts.name!r} is not durable: what was forwarded is lost when the broker restarts"]
