"""
Run a relay over AMQP 1.0: messages are read from the ingress and written to the target as they are encoded.

The fence, the ledger, its markers and the records of the audit stay on a connection of AMQP 0.9.1, which has what they need: an
exclusive consumer, and the oldest clients to be fenced off by it. Forwarding is confirmed, one disposition for each message, and
the marker of a batch follows when all of them are accepted. A marker of a part would travel on another connection than what it
speaks of and prove nothing, so none is published: a killed shim leaves its whole batch in doubt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote_to_bytes

from attrs import evolve, frozen
from proton import Data, ProtonException

from dedup.amqp091.connection import RawChannel
from dedup.amqp091.driver import Ended
from dedup.amqp091.forwarding import ConfirmedForwarder
from dedup.amqp091.links import ForwardingLink
from dedup.amqp091.session import Session
from dedup.core import steps
from dedup.core.bodies import DIGEST_BYTES
from dedup.core.deaths import DeathHistory
from dedup.core.identity import (
    MARK_HEADER,
    REASON_HEADER,
    RETURNS_HEADER,
    fault_of_binding,
    unwrap_serial,
)
from dedup.core.in_band import question_of
from dedup.core.message_ids import KEY_SEQUENCE
from dedup.core.names import Route
from dedup.core.questions import Question
from dedup.core.returns import UNKNOWN_S, counted, last_death_s, reentry
from dedup.core.settings import RelaySettings
from dedup.core.steps import Outgoing
from proton_adapter import encoding, walk
from proton_adapter.addresses import queue_address, target_address
from proton_adapter.carrier import Carrier, OnSettled
from proton_adapter.identifying import key_of
from proton_adapter.sections import Added, Scanned, amend, body, scan, strip

_QUEUE = encoding.symbol("queue")
_QUEUES = b"/queues/"
#: In the stack trace that RabbitMQ's session ends with when it cannot translate what it is about to deliver.
_DELIVERING = "handle_deliver"
#: A longer history is not decoded: proton's decoder goes as deep as what it is given.
_DEATHS_BYTES_MAX = 4096
#: Groups whose newest number is remembered beside the windows; more than a prefetch can hold.
_GROUPS_MAX = 65_536


@frozen
class Parcel:
    """
    What the ingress hands through the relay: the encoded sections, and where everything is in them.
    """

    raw: bytes
    scanned: Scanned
    #: How often it has come back, this time included; 0: it has not, or nobody can tell.
    returns: int = 0


class Forwarder(ConfirmedForwarder):
    """
    Forward over AMQP 1.0; markers, records and strays go where they went, over AMQP 0.9.1.
    """

    def __init__(self, channel: RawChannel, route: Route, answer: Any, carrier: Carrier) -> None:
        super().__init__(channel, route, answer)
        self._carrier = carrier
        self._target = route.forward
        self._quarantine = route.aside

    def forward(self, effect: steps.Forward) -> None:
        """
        Publish the batch; its record and its marker follow when everything is accepted.
        """
        self._channel.send(self._framing.releases(effect.release))
        self._carrier.publish([self._message(out) for out in effect.outgoing], self._on_settled(effect))

    def _on_settled(self, effect: steps.Forward) -> OnSettled:
        def settled(refused: list[int]) -> None:
            self._nacked, self._returned = refused, []
            self._all_confirmed(effect)

        return settled

    def _message(self, out: Outgoing) -> tuple[str, bytes]:
        """
        Return the address and the sections of one message; its routing key stays the one it came with.
        """
        parcel: Parcel = out.arrival.payload
        added: list[tuple[str, Added]] = [(MARK_HEADER, True)] if out.marked else []
        if parcel.returns:
            added.append((RETURNS_HEADER, parcel.returns))
        if out.reason:
            added.append((REASON_HEADER, out.reason))
        data = parcel.raw
        if out.stripped:
            data = strip(data, parcel.scanned, added)
        elif added or parcel.scanned.reserved:
            data = amend(data, parcel.scanned, added)
        exchange = self._quarantine if out.reason else self._target
        return target_address(exchange, parcel.scanned.routing_key.decode(errors="replace")), data


class Fence(ForwardingLink):
    """
    Hold the fence, and forward over *carrier*, which is made when it is held.
    """

    def __init__(self, *args: Any, make_carrier: Callable[..., Carrier], **options: Any) -> None:
        self.carrier: Carrier | None = None
        self._make_carrier = make_carrier
        super().__init__(*args, **options)

    def cut(self) -> None:
        """
        End both connections at once.
        """
        if self.carrier is not None:
            self.carrier.cut()
        super().cut()

    def _on_fence_held(self, raw: RawChannel, _: Any) -> None:
        self.carrier = self._make_carrier(
            on_ready=partial(self._on_carrier_ready, raw),
            on_failed=self._failed,
            on_blocked=self._on_carrier_blocked,
        )

    def _on_carrier_blocked(self, is_blocked: bool) -> None:
        if is_blocked:
            reason = "the broker takes no messages over AMQP 1.0, as during an alarm"
            self._notice("dedup.blocked", {"reason": reason})
        else:
            self._notice("dedup.unblocked", {})

    def _on_carrier_ready(self, raw: RawChannel) -> None:
        assert self.carrier is not None
        self._begin(Forwarder(raw, self._route, self._tell, self.carrier))


class Ingress:
    """
    Take deliveries of the ingress and acknowledge them.
    """

    def __init__(
        self,
        carrier: Carrier,
        route: Route,
        *,
        tell: Any,
        prefetch: int,
        settings: RelaySettings,
        last: Callable[[str], int],
    ) -> None:
        self._carrier = carrier
        self._tell = tell
        self._settings = settings
        self._last_settled = last
        #: Highest numbers of groups that may not be settled yet, the longest silent group first.
        self._last_seen: OrderedDict[str, int] = OrderedDict()
        self._target = route.target
        #: How a death in the target looks inside an encoded death history.
        self._own_death = _QUEUE + encoding.text(route.target)
        carrier.consume(queue_address(route.source), prefetch, self._on_messages)

    def ack(self, tag: int) -> None:
        """
        Acknowledge every delivery up to *tag*.
        """
        self._carrier.ack(tag)

    def close(self, on_closed: Callable[[], None]) -> None:
        """
        Close in order: when *on_closed* is called, the broker has taken every acknowledgement.
        """
        self._carrier.close(on_closed)

    def cut(self) -> None:
        """
        End the connection at once.
        """
        self._carrier.cut()

    def _on_messages(self, messages: Sequence[tuple[int, bytes]]) -> None:
        self._tell(steps.Arrived([self._arrival(number, raw) for number, raw in messages]))

    def _arrival(self, number: int, raw: bytes) -> steps.Arrival:
        scanned = scan(raw)
        publisher, sequence = scanned.publisher, scanned.sequence
        if scanned.group is not None and self._settings.by_group_sequence:
            publisher, sequence = self._unwrap(*scanned.group)
        elif (key := self._key(raw, scanned)) is not None:
            publisher, sequence = key, KEY_SEQUENCE
        question, fault = question_in(scanned) if scanned.ask is not None else (None, scanned.fault)
        arrival = steps.Arrival(
            number,
            scanned.redelivered,
            publisher,
            sequence,
            scanned.attempt,
            scanned.first_sent_ms,
            fault or fault_of_binding(scanned.publisher, scanned.user, self._settings.bind_publisher_to_user),
            self._own_death in scanned.deaths,
            scanned.body_bytes,
            Parcel(raw, scanned),
            self._digest(raw, scanned),
            question,
            scanned.wants_receipt,
        )
        if arrival.returning and not arrival.fault and (known_by := arrival.known_by) is not None:
            self._count_return(arrival, raw, scanned, known_by)
        return arrival

    def _count_return(
        self, arrival: steps.Arrival, raw: bytes, scanned: Scanned, known_by: tuple[str, int]
    ) -> None:
        """
        Say what tells copies of this way back from the next one, and let the message go on with one more.
        """
        returns = returns_of(raw, scanned)
        if returns is not None:
            # Groups and message ids may be properties: whoever takes the count off a message leaves them.
            died_s = 0.0 if scanned.publisher is not None else died_in(self._target, scanned.deaths)
            arrival.reentry = reentry(*known_by, returns, died_s=died_s)
            arrival.payload = Parcel(raw, scanned, returns + 1)

    def _key(self, raw: bytes, scanned: Scanned) -> str | None:
        """
        Return the key of the message id of a message without a stamp; None when it has none, or nobody asks.
        """
        if scanned.publisher is not None or scanned.fault or not self._settings.by_message_id:
            return None
        return key_of(raw, scanned, self._settings.message_id_header)

    def _unwrap(self, group: str, serial: int) -> tuple[str, int]:
        """
        Return the publisher and the sequence of a message of a group.
        """
        last = max(self._last_seen.pop(group, 0), self._last_settled(group))
        sequence = unwrap_serial(serial, last)
        self._last_seen[group] = max(last, sequence)
        if len(self._last_seen) > _GROUPS_MAX:
            self._last_seen.popitem(last=False)
        return group, sequence

    def _digest(self, raw: bytes, scanned: Scanned) -> bytes:
        if scanned.publisher is None or not self._settings.check_bodies:
            return b""
        return blake2b(body(raw, scanned), digest_size=DIGEST_BYTES).digest()


def returns_of(raw: bytes, scanned: Scanned) -> int | None:
    """
    Return how often a message was forwarded after it had come back; None when what it says cannot be.
    """
    found = next(
        (section for section in scanned.sections if section.code == walk.APPLICATION_PROPERTIES), None
    )
    for name, value in walk.entries(raw, found, walk.STRINGS):
        if name == RETURNS_HEADER.encode():
            return counted(walk.integer(raw, value))
    return 0


def died_in(queue: str, encoded: bytes) -> float:
    """
    Return when a message died in *queue* last, as its *encoded* history has it; unix seconds.
    """
    if len(encoded) > _DEATHS_BYTES_MAX:
        return UNKNOWN_S
    data = Data()
    try:
        data.decode(encoded)
        data.rewind()
        data.next()
        return last_death_s(DeathHistory.of(data.get_object(), "x-opt-deaths"), queue)
    except (ProtonException, RecursionError, ValueError, TypeError, OverflowError):
        return UNKNOWN_S


def question_in(scanned: Scanned) -> tuple[Question | None, str]:
    """
    Return the question a message with ``dedup-ask`` asks, or why it is none, as a slug.
    """
    assert scanned.ask is not None
    assert scanned.publisher is not None
    reply_to = scanned.reply_to
    if reply_to.startswith(_QUEUES):  # RabbitMQ 4.3 makes an address of it
        reply_to = unquote_to_bytes(reply_to.removeprefix(_QUEUES))
    return question_of(
        scanned.publisher,
        scanned.ask,
        body_bytes=scanned.body_bytes,
        reply_to=reply_to,
        correlation=scanned.correlation,
    )


class Amqp10Session(Session):
    """
    One session of one relay, with ingress, target and quarantine over AMQP 1.0.
    """

    #: Transactions are AMQP 0.9.1's.
    can_be_exact = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Parts of the own batches are not marked, but a shim of AMQP 0.9.1 may have left marked ones.
        survey = self._survey
        self._survey = lambda: evolve(survey(), local=False)

    def _open_forwarding(self) -> ForwardingLink:
        return Fence(
            self._parameters,
            self._loop,
            self._route,
            tell=self._tell,
            on_failed=self._on_failed,
            exact=False,
            notice=self._observer.notice,
            make_carrier=partial(Carrier, self._parameters, self._loop, f"dedup shim {self._route.queue}"),
        )

    def _open_ingress(self) -> Any:
        assert isinstance(self._forwarding, Fence)
        assert self._forwarding.carrier is not None
        return Ingress(
            self._forwarding.carrier,
            self._route,
            tell=self._tell,
            prefetch=self._prefetch,
            settings=self._relay.settings,
            last=self._last,
        )

    def _outcome(self, error: BaseException, link: Any = None) -> Ended:
        """
        Say what an error means; what the broker could not deliver is no fault of what is being published on the same session.
        """
        return super()._outcome(error, None if _DELIVERING in str(error) else link)

    def _last(self, publisher: str) -> int:
        """
        Return the highest sequence of *publisher* that is settled; 0: there is none.
        """
        window = self._relay.judge.publishers.settled(publisher)
        return 0 if window is None else window.last
