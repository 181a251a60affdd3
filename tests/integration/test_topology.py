"""What surrounds a guarded queue, on a real RabbitMQ: built, looked at, taken down."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pika
import pytest

from dedup.amqp091.inspection import Inspection, inspect
from dedup.amqp091.management import Management
from dedup.amqp091.topology import guard, guarded, unguard
from dedup.core import names
from dedup.errors import BrokerUnavailableError, ConfigError, TopologyError
from dedup.testing.servers import RabbitMQ
from tests.looking import administer, bodies, channel, drain
from tests.security.users import PASSWORD, Users

SetPolicy = Callable[..., None]


@pytest.fixture
def management(rabbitmq: RabbitMQ) -> Management:
    """The management API of the test's broker."""
    return Management(rabbitmq.management_url, amqp=rabbitmq.url)


@pytest.fixture
def queue(rabbitmq: RabbitMQ, queue_name: str) -> Iterator[str]:
    """A classic target that is there, guarded by nobody; everything of it goes away with the test."""
    with channel(rabbitmq) as ours:
        ours.queue_declare(queue_name, durable=True, arguments={"x-queue-type": "classic"})
    yield queue_name
    unguard(rabbitmq.url, queue_name, bindings="drop", force=True)
    with channel(rabbitmq) as ours:
        ours.queue_delete(queue_name)
        ours.exchange_delete(f"{queue_name}.in")


@pytest.fixture
def set_policy(rabbitmq: RabbitMQ, queue: str) -> Iterator[SetPolicy]:
    """Set a policy on one queue or exchange: ``set_policy(name, **definition)``; "_" stands for "-"."""
    if rabbitmq.external:
        pytest.skip("needs a private RabbitMQ")
    applied: list[str] = []

    def set_policy(name: str, *, kind: str = "policies", to: str = "queues", **definition: Any) -> None:
        path = f"{kind}/%2F/{queue}-{len(applied)}"
        definition = {key.replace("_", "-"): value for key, value in definition.items()}
        applied.append(path)
        administer(rabbitmq, "PUT", path, {"pattern": f"^{name}$", "apply-to": to, "definition": definition})

    yield set_policy
    for path in applied:
        administer(rabbitmq, "DELETE", path)


def bind(rabbitmq: RabbitMQ, queue: str, *keys: str, **arguments: Any) -> str:
    """Bind *queue* to a topic exchange of its own, and return the exchange's name."""
    with channel(rabbitmq) as ours:
        ours.exchange_declare(f"{queue}.in", "topic", durable=True)
        for key in keys:
            ours.queue_bind(queue, f"{queue}.in", key, arguments=arguments or None)
    return f"{queue}.in"


def bound(management: Management, queue: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return what *queue* is bound to, but for its guard's own exchange."""
    found = management.bindings("/", queue)
    return sorted((b.source, b.routing_key, dict(b.arguments)) for b in found if ".dedup." not in b.source)


def publish(rabbitmq: RabbitMQ, queue: str, *bodies: bytes, exchange: str = "") -> None:
    """Publish, confirmed and mandatory."""
    with channel(rabbitmq) as ours:
        for body in bodies:
            ours.basic_publish(exchange, queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def snapshot(management: Management, queue: str) -> list[Any]:
    """Return all there is about a guarded queue."""
    queues = [facts for facts in management.queues("/") if facts.name.startswith(queue)]
    exchanges = [
        management.exchange("/", name) for name in (*names.leading(queue), names.strays_exchange(queue))
    ]
    return [queues, exchanges, [management.bindings("/", facts.name) for facts in queues]]


def look(rabbitmq: RabbitMQ, management: Management, queue: str) -> Inspection:
    """Inspect as a shim does."""
    return inspect(rabbitmq.url, queue, management=management)


# -- guard ----------------------------------------------------------------------------------------


def test_a_guarded_classic_queue_can_be_forwarded_into_exactly(
    rabbitmq: RabbitMQ, management: Management, queue: str
) -> None:
    """What guard() builds passes inspection without a warning."""
    guard(rabbitmq.url, queue)

    assert look(rabbitmq, management, queue) == Inspection(
        "classic",
        exact_possible=True,
        reason="classic queues that cannot refuse, on the broker's only node",
        may_refuse=False,
    )


def test_guarding_twice_changes_nothing(rabbitmq: RabbitMQ, management: Management, queue: str) -> None:
    """The second guard() leaves queues, exchanges, bindings and messages as they are."""
    guard(rabbitmq.url, queue)
    publish(rabbitmq, names.ingress(queue), b"waits")
    before = snapshot(management, queue)

    guard(rabbitmq.url, queue)

    assert snapshot(management, queue) == before
    assert len(before[0]) == 5
    assert bodies(drain(rabbitmq, names.ingress(queue))) == [b"waits"]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_missing_target_is_declared_only_when_asked(
    rabbitmq: RabbitMQ, management: Management, queue: str, kind: Literal["classic", "quorum"]
) -> None:
    """Without declare= nothing is built for a queue that is not there; with it the target is durable and of that type."""
    with channel(rabbitmq) as ours:
        ours.queue_delete(queue)
    with pytest.raises(TopologyError, match=r"does not exist.*--declare"):
        guard(rabbitmq.url, queue)
    assert management.queue("/", names.ingress(queue)) is None

    guard(rabbitmq.url, queue, declare=kind)

    found = management.queue("/", queue)
    assert found is not None
    assert (found.type, found.durable) == (kind, True)


def test_guarding_with_other_arguments_is_refused(rabbitmq: RabbitMQ, queue: str) -> None:
    """A queue that exists with another type is named, with what differs and what to do."""
    guard(rabbitmq.url, queue)

    with pytest.raises(
        TopologyError, match=r"quarantine' exists.*'quorum' but current is 'classic'.*delete it"
    ):
        guard(rabbitmq.url, queue, kind="quorum")


def test_a_quorum_ingress_never_gives_a_message_up(
    rabbitmq: RabbitMQ, management: Management, queue: str
) -> None:
    """The default delivery limit of RabbitMQ 4 is off, and exact forwarding is ruled out by the quarantine's type."""
    guard(rabbitmq.url, queue, kind="quorum")

    found = management.queue("/", names.ingress(queue))
    assert found is not None
    assert found.arguments.get("x-delivery-limit", -1) == -1
    inspection = look(rabbitmq, management, queue)
    assert inspection.warnings == ()
    assert not inspection.exact_possible
    assert "quorum queue" in inspection.reason


@pytest.mark.parametrize("name", ["", "amq.orders", "orders.dedup", "orders.dedup.ledger", "ö" * 120])
def test_names_that_cannot_be_guarded(name: str) -> None:
    """A name that is empty, reserved, too long or part of a guard is refused before anything connects."""
    with pytest.raises(ConfigError):
        guard("amqp://127.0.0.1:1", name)


# -- bindings -------------------------------------------------------------------------------------


def test_copied_bindings_lead_to_both_queues(rabbitmq: RabbitMQ, management: Management, queue: str) -> None:
    """Copy leaves the old bindings and repeats them at the ingress, arguments and odd keys too."""
    exchange = bind(rabbitmq, queue, "a.#", "ü/ %~", note="x")

    done = guard(rabbitmq.url, queue, management=management, bindings="copy")

    expected = [(exchange, "a.#", {"note": "x"}), (exchange, "ü/ %~", {"note": "x"})]
    assert bound(management, queue) == bound(management, names.ingress(queue)) == expected
    assert len(done.bindings) == 2
    assert done.warnings == ()


def test_moved_bindings_lead_to_the_ingress_only_and_back(
    rabbitmq: RabbitMQ, management: Management, queue: str
) -> None:
    """Move takes the bindings off the target; unguard moves them back; repeating both changes nothing."""
    exchange = bind(rabbitmq, queue, "a.#", "ü/ %~", note="x")
    before = bound(management, queue)

    for _ in range(2):
        guard(rabbitmq.url, queue, management=management, bindings="move")
        assert (bound(management, queue), bound(management, names.ingress(queue))) == ([], before)
    publish(rabbitmq, "a.b", b"1", exchange=exchange)
    assert bodies(drain(rabbitmq, names.ingress(queue))) == [b"1"]
    assert bodies(drain(rabbitmq, queue)) == []

    for _ in range(2):
        unguard(rabbitmq.url, queue, management=management, bindings="move")
        assert bound(management, queue) == before


def test_a_number_among_a_bindings_arguments_is_warned_of(
    rabbitmq: RabbitMQ, management: Management, queue: str
) -> None:
    """The management API does not tell a number's size, and a headers exchange compares it."""
    bind(rabbitmq, queue, "a", priority=5, urgent=True)

    done = guard(rabbitmq.url, queue, management=management, bindings="copy")

    assert len(done.warnings) == 1
    assert "number" in done.warnings[0]


def test_bindings_need_the_management_api(rabbitmq: RabbitMQ, queue: str) -> None:
    """Without the management API copying and moving are refused, and unguard does not guess."""
    with pytest.raises(ConfigError, match="--management"):
        guard(rabbitmq.url, queue, bindings="move")
    with pytest.raises(ConfigError, match="--bindings drop"):
        unguard(rabbitmq.url, queue)


# -- unguard --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("held", [names.ingress, names.quarantine])
def test_unguard_refuses_to_throw_messages_away(
    rabbitmq: RabbitMQ,
    management: Management,
    queue: str,
    held: Callable[[str], str],
    kind: Literal["classic", "quorum"],
) -> None:
    """A message in ingress or quarantine keeps everything as it is, until it is gone or given up."""
    guard(rabbitmq.url, queue, kind=kind)
    publish(rabbitmq, held(queue), b"x")
    before = snapshot(management, queue)[1:]

    with pytest.raises(TopologyError, match=r"holds 1 messages.*--force"):
        unguard(rabbitmq.url, queue, management=management)
    assert snapshot(management, queue)[1:] == before
    assert bodies(drain(rabbitmq, held(queue))) == [b"x"]

    unguard(rabbitmq.url, queue, management=management)
    assert [facts.name for facts in snapshot(management, queue)[0]] == [queue]
    assert snapshot(management, queue)[1] == [None, None, None]


def test_unguard_by_force_spares_the_target(rabbitmq: RabbitMQ, management: Management, queue: str) -> None:
    """Force deletes what holds messages, and the target's own messages stay."""
    guard(rabbitmq.url, queue)
    for name in (queue, names.ingress(queue), names.quarantine(queue)):
        publish(rabbitmq, name, b"x")

    unguard(rabbitmq.url, queue, management=management, force=True)

    assert [facts.name for facts in snapshot(management, queue)[0]] == [queue]
    assert bodies(drain(rabbitmq, queue)) == [b"x"]


def test_unguard_refuses_while_something_is_bound(
    rabbitmq: RabbitMQ, management: Management, queue: str
) -> None:
    """Deleting a bound ingress would lose what is published to the exchange: the exchange is named."""
    exchange = bind(rabbitmq, queue, "a")
    guard(rabbitmq.url, queue, management=management, bindings="move")

    with pytest.raises(TopologyError, match=rf"bound to '{exchange}'.*--bindings move"):
        unguard(rabbitmq.url, queue, management=management)
    assert bound(management, names.ingress(queue))

    unguard(rabbitmq.url, queue, management=management, bindings="drop")
    assert bound(management, queue) == []


def test_unguard_refuses_under_a_running_shim(rabbitmq: RabbitMQ, management: Management, queue: str) -> None:
    """Whoever holds the ledger is a shim; while it does, the guard stays, and the list shows it."""
    guard(rabbitmq.url, queue)
    with channel(rabbitmq) as ours:
        ours.basic_consume(names.ledger(queue), lambda *_: None, exclusive=True)

        with pytest.raises(TopologyError, match="a shim is forwarding"):
            unguard(rabbitmq.url, queue, management=management)

        assert [listed.shim for listed in guarded(rabbitmq.url, management) if listed.queue == queue] == [
            True
        ]


# -- list -----------------------------------------------------------------------------------------


def test_the_list_counts_now(rabbitmq: RabbitMQ, management: Management, queue: str) -> None:
    """The counts are those of this moment and not of the last statistics, and unguarded queues are not listed."""
    guard(rabbitmq.url, queue)
    publish(rabbitmq, names.ingress(queue), b"1", b"2", b"3")
    publish(rabbitmq, names.quarantine(queue), b"1")

    found = [listed for listed in guarded(rabbitmq.url, management) if listed.queue.startswith(queue)]

    assert [(f.queue, f.target_type, f.waiting, f.messages, f.quarantined) for f in found] == [
        (queue, "classic", 3, 0, 1)
    ]
    assert found[0].exact_possible
    assert not found[0].shim


# -- inspect: what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({"message_ttl": 60000}, "message-ttl 60000 by policy"),
        ({"max_length": 100}, r"max-length 100 by policy '.*' \(overflow drop-head\)"),
        ({"max_length_bytes": 100, "overflow": "drop-head"}, "max-length-bytes 100"),
        ({"expires": 3600000}, "expires 3600000"),
    ],
)
def test_an_ingress_that_a_policy_makes_lossy_is_refused(
    rabbitmq: RabbitMQ,
    management: Management,
    queue: str,
    *,
    set_policy: SetPolicy,
    definition: dict[str, Any],
    words: str,
) -> None:
    """A policy that would drop messages stops the shim before it starts, at once, named with its value."""
    guard(rabbitmq.url, queue)
    assert look(rabbitmq, management, queue).exact_possible
    set_policy(names.ingress(queue), **definition)

    with pytest.raises(TopologyError, match=words):
        look(rabbitmq, management, queue)


def test_an_operator_policy_is_seen_too(
    rabbitmq: RabbitMQ, management: Management, queue: str, set_policy: SetPolicy
) -> None:
    """Operator policies go before users' policies and are refused the same way."""
    guard(rabbitmq.url, queue)
    set_policy(names.ingress(queue), kind="operator-policies", message_ttl=60000)

    with pytest.raises(TopologyError, match="message-ttl 60000 by operator policy"):
        look(rabbitmq, management, queue)


def test_an_ingress_that_refuses_when_full_is_fine(
    rabbitmq: RabbitMQ, management: Management, queue: str, set_policy: SetPolicy
) -> None:
    """A length limit that nacks publishers loses nothing."""
    guard(rabbitmq.url, queue)
    set_policy(names.ingress(queue), max_length=100, overflow="reject-publish")

    assert look(rabbitmq, management, queue).exact_possible


@pytest.mark.parametrize(
    ("which", "options", "words"),
    [
        (names.ingress, {"arguments": {"x-queue-type": "classic"}}, "x-single-active-consumer"),
        (
            names.ingress,
            {
                "arguments": {
                    "x-queue-type": "classic",
                    "x-single-active-consumer": True,
                    "x-message-ttl": 9000,
                }
            },
            "message-ttl 9000 by argument",
        ),
        (
            names.ingress,
            {"arguments": {"x-queue-type": "classic", "x-single-active-consumer": True, "x-max-priority": 3}},
            "max-priority 3",
        ),
        (
            names.ingress,
            {
                "arguments": {"x-queue-type": "classic", "x-single-active-consumer": True},
                "auto_delete": True,
            },
            "auto-delete",
        ),
        (names.ledger, {"arguments": {"x-queue-type": "quorum"}}, "quorum queue"),
        (names.ledger, {"arguments": {"x-queue-type": "classic", "x-max-length": 9}}, "max-length 9"),
        (
            names.ledger,
            {"arguments": {"x-queue-type": "classic", "x-single-active-consumer": True}},
            "single-active-consumer",
        ),
        (
            names.quarantine,
            {"arguments": {"x-queue-type": "classic"}, "auto_delete": True},
            "auto-delete",
        ),
    ],
)
def test_a_piece_declared_otherwise_is_refused(
    rabbitmq: RabbitMQ,
    management: Management,
    queue: str,
    *,
    which: Callable[[str], str],
    options: dict[str, Any],
    words: str,
) -> None:
    """A queue of the right name with arguments that would lose messages is refused, and the fix named."""
    guard(rabbitmq.url, queue)
    with channel(rabbitmq) as ours:
        ours.queue_delete(which(queue))
        ours.queue_declare(which(queue), durable=True, **options)
        if which is names.quarantine:
            ours.queue_bind(which(queue), names.quarantine_exchange(queue))

    with pytest.raises(TopologyError, match=rf"{words}.*dedup queue guard {queue}"):
        look(rabbitmq, management, queue)


@pytest.mark.parametrize("which", [names.ingress, names.ledger, names.quarantine, lambda queue: queue])
def test_a_missing_queue_is_named(
    rabbitmq: RabbitMQ, management: Management, queue: str, which: Callable[[str], str]
) -> None:
    """Whatever queue is missing, the message says which and how to make it, with or without management."""
    guard(rabbitmq.url, queue)
    with channel(rabbitmq) as ours:
        ours.queue_delete(which(queue))

    for seeing in (management, None):
        with pytest.raises(
            TopologyError, match=rf"'{which(queue)}' does not exist.*dedup queue guard {queue}"
        ):
            inspect(rabbitmq.url, queue, management=seeing)


@pytest.mark.parametrize("which", [names.forward_exchange, names.quarantine_exchange, names.strays_exchange])
def test_a_missing_exchange_is_named(
    rabbitmq: RabbitMQ, management: Management, queue: str, which: Callable[[str], str]
) -> None:
    """Whatever exchange is missing, the message says which and how to make it."""
    guard(rabbitmq.url, queue)
    with channel(rabbitmq) as ours:
        ours.exchange_delete(which(queue))

    with pytest.raises(TopologyError, match=rf"'{which(queue)}' does not exist.*dedup queue guard {queue}"):
        look(rabbitmq, management, queue)


def test_a_forward_exchange_that_leads_elsewhere_is_refused(
    rabbitmq: RabbitMQ, management: Management, queue: str
) -> None:
    """A second queue behind the exchange would hide that the target is missing."""
    guard(rabbitmq.url, queue)
    with channel(rabbitmq) as ours:
        ours.queue_bind(names.quarantine(queue), names.forward_exchange(queue))

    with pytest.raises(TopologyError, match=rf"also leads to '{names.quarantine(queue)}'"):
        look(rabbitmq, management, queue)


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [("topic", {}, "topic exchange"), ("fanout", {}, "alternate exchange is none")],
)
def test_a_forward_exchange_of_another_make_is_refused(
    rabbitmq: RabbitMQ,
    management: Management,
    queue: str,
    *,
    kind: str,
    arguments: dict[str, Any],
    words: str,
) -> None:
    """An exchange of another type, or one that drops what it cannot route, is refused."""
    guard(rabbitmq.url, queue)
    name = names.forward_exchange(queue)
    with channel(rabbitmq) as ours:
        ours.exchange_delete(name)
        ours.exchange_declare(name, kind, durable=True, arguments=arguments)

    with pytest.raises(TopologyError, match=rf"{words}.*dedup queue guard {queue}"):
        look(rabbitmq, management, queue)


def test_a_quarantine_without_its_binding_is_refused(
    rabbitmq: RabbitMQ, management: Management, queue: str
) -> None:
    """A quarantine queue that was declared anew by hand is not reached by its exchange."""
    guard(rabbitmq.url, queue)
    with channel(rabbitmq) as ours:
        ours.queue_unbind(names.quarantine(queue), names.quarantine_exchange(queue), "")

    with pytest.raises(TopologyError, match=r"does not lead to"):
        look(rabbitmq, management, queue)


# -- inspect: exact or confirmed, warnings --------------------------------------------------------


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_target_that_may_refuse_rules_exact_forwarding_out(
    rabbitmq: RabbitMQ, management: Management, queue: str, set_policy: SetPolicy, overflow: str
) -> None:
    """A reject-publish policy is seen at once, and the reason names it."""
    guard(rabbitmq.url, queue)
    assert look(rabbitmq, management, queue).exact_possible
    set_policy(queue, max_length=10, overflow=overflow)

    inspection = look(rabbitmq, management, queue)

    assert not inspection.exact_possible
    assert f"overflow {overflow} by policy" in inspection.reason


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_another_type_of_target_rules_exact_forwarding_out(
    rabbitmq: RabbitMQ, management: Management, queue: str, kind: str
) -> None:
    """Transactions are sound for classic queues only."""
    with channel(rabbitmq) as ours:
        ours.queue_delete(queue)
        ours.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    guard(rabbitmq.url, queue)

    inspection = look(rabbitmq, management, queue)

    assert (inspection.target_type, inspection.exact_possible) == (kind, False)
    assert f"{kind} queue" in inspection.reason


def test_limits_of_the_quarantine_are_warnings(
    rabbitmq: RabbitMQ, management: Management, queue: str, set_policy: SetPolicy
) -> None:
    """Whoever lets quarantined messages expire may mean it, and is told."""
    guard(rabbitmq.url, queue)
    set_policy(names.quarantine(queue), max_length=10)

    inspection = look(rabbitmq, management, queue)

    assert inspection.exact_possible
    assert len(inspection.warnings) == 1
    assert "max-length 10" in inspection.warnings[0]


def test_a_delivery_limit_at_the_ingress_is_a_warning(
    rabbitmq: RabbitMQ, management: Management, queue: str, set_policy: SetPolicy
) -> None:
    """A quorum ingress whose policy gives messages up after some deliveries is warned of."""
    guard(rabbitmq.url, queue, kind="quorum")
    set_policy(names.ingress(queue), delivery_limit=7)

    assert "delivery-limit 7 by policy" in look(rabbitmq, management, queue).warnings[0]


def test_a_target_declared_anew_is_bound_again(
    rabbitmq: RabbitMQ, management: Management, queue: str
) -> None:
    """A target that was deleted and declared lost its binding; the look before the next session restores it."""
    guard(rabbitmq.url, queue)
    with channel(rabbitmq) as ours:
        ours.queue_delete(queue)
        ours.queue_declare(queue, durable=True)
    publish(rabbitmq, "any", b"lost way", exchange=names.forward_exchange(queue))

    look(rabbitmq, management, queue)

    publish(rabbitmq, "any", b"found", exchange=names.forward_exchange(queue))
    assert bodies(drain(rabbitmq, names.quarantine(queue))) == [b"lost way"]
    assert bodies(drain(rabbitmq, queue)) == [b"found"]


# -- what cannot be seen --------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "http://guest:guest@127.0.0.1:1"])
def test_without_management_exact_forwarding_is_not_possible(
    rabbitmq: RabbitMQ, queue: str, url: str
) -> None:
    """What is not seen is not believed: confirmed forwarding, with a warning; or an error where exact is a must."""
    guard(rabbitmq.url, queue)
    unseeing = Management(url, amqp=rabbitmq.url) if url else None

    inspection = inspect(rabbitmq.url, queue, management=unseeing)

    assert (inspection.target_type, inspection.exact_possible) == ("", False)
    assert "can be seen" in inspection.reason
    assert len(inspection.warnings) == 1
    with pytest.raises(BrokerUnavailableError if url else ConfigError):
        inspect(rabbitmq.url, queue, management=unseeing, management_needed=True)


@pytest.mark.parametrize(
    ("tag", "exact", "words"),
    [
        ("monitoring", True, "only node"),
        ("management", False, "nodes cannot be seen.*'monitoring'"),
        ("", False, "Not management user.*'monitoring'"),
    ],
)
def test_a_user_without_the_right_to_look(
    rabbitmq: RabbitMQ, queue: str, tag: str, exact: bool, words: str
) -> None:
    """The tag "monitoring" is enough; with less the reason says what to grant; may it not bind, it is warned of."""
    guard(rabbitmq.url, queue)
    with Users(rabbitmq) as users:
        url = users.add("limited", write=f"^{queue}[.]dedup", read=f"^{queue}", tags=tag)
        at = rabbitmq.management_url.replace("guest:guest@", "")

        inspection = inspect(url, queue, management=Management(at, amqp=url))

    assert inspection.exact_possible is exact
    assert re.search(words, inspection.reason)
    assert PASSWORD not in str(inspection)
    assert any("may not bind" in warning for warning in inspection.warnings)


@pytest.mark.long
def test_the_look_waits_for_a_management_api_that_starts(
    private_rabbitmq: Callable[..., RabbitMQ],
) -> None:
    """After a restart of the broker the first look that succeeds over AMQP sees everything."""
    rabbitmq = private_rabbitmq()
    guard(rabbitmq.url, "orders", declare="classic")
    management = Management(rabbitmq.management_url, amqp=rabbitmq.url)
    rabbitmq.kill()
    rabbitmq.start()

    assert inspect(rabbitmq.url, "orders", management=management).exact_possible


def test_nobody_answers(rabbitmq: RabbitMQ, queue: str) -> None:
    """A broker that is not there is an error worth trying again; a wrong password is not; neither tells the password."""
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1 "):
        guard("amqp://user:s3cret@127.0.0.1:1", queue)
    with pytest.raises(ConfigError, match="refused the login") as caught:
        guard(rabbitmq.url.replace("guest:guest", "guest:s3cret"), queue)
    assert "s3cret" not in str(caught.value)


def test_the_second_host_of_the_url_serves(rabbitmq: RabbitMQ, management: Management, queue: str) -> None:
    """A list of hosts works as long as one of them answers, for AMQP and for management."""
    guard(f"amqp://guest:guest@127.0.0.1:1,{rabbitmq.url}", queue)
    two = Management(f"http://127.0.0.1:1,{rabbitmq.management_url}", amqp=rabbitmq.url)

    assert two.queue("/", names.ingress(queue)) == management.queue("/", names.ingress(queue))
    started = time.monotonic()
    assert inspect(f"amqp://guest:guest@127.0.0.1:1,{rabbitmq.url}", queue, management=two).exact_possible
    assert time.monotonic() - started < 2
