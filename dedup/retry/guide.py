"""Tell how an existing queue comes to have its dead letters retried, without being declared anew."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from attrs import frozen

from dedup.amqp091.facts import QueueFacts
from dedup.amqp091.management import Management
from dedup.amqp091.policies import Setting
from dedup.errors import TopologyError

#: The first version whose quorum queues retry with a delay by themselves.
NATIVE_SINCE: Final = (4, 3)
_NATIVE: Final = ("delayed-retry-type", "delayed-retry-min", "delayed-retry-max")


@frozen
class Step:
    """
    One thing to do, and why.
    """

    why: str
    #: To be typed; empty: nothing.
    command: str = ""


@frozen
class Guide:
    """
    What a queue has, and what is left to do.
    """

    queue: str
    dead_letter_queue: str
    type: str
    #: What is in force already.
    found: Sequence[str]
    steps: Sequence[Step]
    #: Whether the broker could do without all this, with what differs.
    native: Sequence[str]


def guide(
    management: Management,
    vhost: str,
    queue: str,
    *,
    dead_letter_queue: str = "",
    version: tuple[int, ...] = (0,),
) -> Guide:
    """
    Look at *queue* and return what it takes.

    Args:
        dead_letter_queue: Empty: where its dead letters go already, else ``QUEUE.dlq``.
        version: Of the broker.

    Raises:
        TopologyError: there is no such queue.
        BrokerUnavailableError, ConfigError: the management API does not answer, or not to this user.
    """
    facts = management.queue(vhost, queue)
    if facts is None:
        raise TopologyError(f"queue {queue!r} does not exist in virtual host {vhost!r}")
    settings = facts.settings
    exchange, key = settings.get("dead-letter-exchange"), settings.get("dead-letter-routing-key")
    # By the default exchange and a key that names a queue, dead letters go there and nowhere else.
    direct = str(key.value) if exchange is not None and exchange.value == "" and key is not None else ""
    wanted = dead_letter_queue or direct or f"{queue}.dlq"
    found = [
        f"{name} {_shown(settings[name])}"
        for name in ("dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy", *_NATIVE)
        if name in settings
    ]
    steps: list[Step] = []
    if management.queue(vhost, wanted) is None:
        steps.append(_declare(management, vhost, wanted))
    if exchange is not None and direct != wanted:
        steps.append(
            Step(
                f"Dead letters of {queue!r} go to exchange {exchange.value!r} by {exchange.source}. Bind {wanted!r} to it, or serve the "
                "queue that is bound there: dedup retry --dead-letter-queue THAT_QUEUE"
            )
        )
    elif exchange is None:
        steps.append(_policy(vhost, facts, wanted))
    if facts.type == "quorum" and "dead-letter-strategy" not in settings:
        steps.append(
            Step(
                "A quorum queue loses dead letters when its leader dies at the wrong moment, unless it has "
                'dead-letter-strategy "at-least-once" and overflow "reject-publish" as well; then it may send one twice'
            )
        )
    steps.append(Step("Run it:", shlex.join(["dedup", "retry", "--dead-letter-queue", wanted])))
    return Guide(queue, wanted, facts.type, found, steps, _native(facts, version))


def _shown(setting: Setting) -> str:
    return f"{setting.value if setting.value != '' else '(the default exchange)'} by {setting.source}"


def _declare(management: Management, vhost: str, queue: str) -> Step:
    body = json.dumps({"durable": True, "arguments": {}})
    place = f"{management.url.split(', ')[0]}/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}"
    return Step(
        f"Declare the dead-letter queue {queue!r}, durable:",
        shlex.join(
            [
                "curl",
                "-u",
                "USER:PASSWORD",
                "-H",
                "content-type: application/json",
                "-X",
                "PUT",
                place,
                "-d",
                body,
            ]
        ),
    )


def _policy(vhost: str, facts: QueueFacts, wanted: str) -> Step:
    """
    Return the policy that makes a queue dead-letter: what it was declared with stays as it is.
    """
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": wanted}
    inherited = {
        name: setting.value
        for name, setting in facts.settings.items()
        if setting.source.startswith("policy ")
    }
    body = json.dumps({**inherited, **definition})
    pattern = "^" + re.escape(facts.name) + "$"
    why = (
        f"Give {facts.name!r} a dead-letter exchange by policy; the queue is not declared anew and loses nothing. The default exchange "
        f"and the routing key lead to {wanted!r} alone."
    )
    if inherited:
        names = ", ".join(
            sorted(
                {
                    setting.source
                    for setting in facts.settings.values()
                    if setting.source.startswith("policy ")
                }
            )
        )
        why += f" One policy applies at a time: this one repeats what {names} says, and goes before it."
    arguments = ["-p", vhost, "--priority", "100", "--apply-to", "queues"]
    return Step(
        why, shlex.join(["rabbitmqctl", "set_policy", *arguments, f"dedup-retry-{facts.name}", pattern, body])
    )


def _native(facts: QueueFacts, version: tuple[int, ...]) -> list[str]:
    if version < NATIVE_SINCE:
        return []
    if facts.type != "quorum":
        return [
            f"{facts.name!r} is a {facts.type} queue: delayed retry of the broker's own is for quorum queues."
        ]
    body = json.dumps(
        {"delayed-retry-type": "all", "delayed-retry-min": 10_000, "delayed-retry-max": 600_000}
    )
    how = (
        "This broker can delay messages inside the quorum queue itself, by count x min and at most max, in milliseconds. "
        f"By policy: {body}"
    )
    kinds = (
        'Type "failed" delays what a consumer held when its channel died, and what AMQP 1.0 modifies as failed; "returned" what '
        'is requeued (nack, requeue); "all" both. A rejected or expired message is not delayed: it is dead-lettered.'
    )
    limit = (
        "delivery-limit counts failures and not returns: a message that is only requeued goes round for ever. What waits "
        "counts as messages of the queue."
    )
    instead = (
        "Prefer it for consumers that die or requeue. Prefer dedup retry for those that reject, for lists of delays, "
        "for classic queues and expired messages, and for an end with a reason."
    )
    return [how, kinds, limit, instead]
