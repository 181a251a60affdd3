"""
Drive the relay of a move from one broker into another.

Theory of operation
-------------------
Forwarding is confirmed. Fence, ledger and target are in the target's broker, on one channel: so the markers of parts prove
there what they prove of a shim, and whoever holds the fence knows that the session before publishes no more. The source is
taken from over a connection of its own; nothing is acknowledged there before the target has confirmed it and Redis has it.

Either connection may be lost alone. The session ends with both: what was delivered comes back from the source as soon as
that gives the old connection up, and nothing new is taken before (see MoveSource). A clean end of a session proves less than in
one broker: the ledger does not see the source restart, which may forget acknowledgements (see RelaySettings.source_witnessed).

What the target cannot take goes to the trash, in the source's broker, over a third connection that is opened when it is
needed first. It goes there before the rest of its batch is published, because the markers in between speak of everything
before them, and behind the marker of the intent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pika
from attrs import evolve

from dedup.amqp091.connection import RawChannel
from dedup.amqp091.forwarding import ConfirmedForwarder
from dedup.amqp091.framing import PROPERTIES_TOO_LARGE, Framing
from dedup.amqp091.links import ForwardingLink, Link, Notice, tell_of_alarms
from dedup.amqp091.move_session import MoveSession
from dedup.amqp091.wire import Delivery, Returned
from dedup.core import steps
from dedup.core.confirms import Confirms
from dedup.core.names import Route
from dedup.core.steps import Outgoing
from dedup.errors import InvalidMessageError

#: Told which of the messages it was given (indexes) were refused.
Stored = Callable[[list[int]], None]


class TrashLink(Link):
    """
    Publish to the trash in the source's broker, one batch at a time, with a confirm for each message.
    """

    def __init__(self, *args: Any, notice: Notice, **kwargs: Any) -> None:
        self._notice = notice
        self._channel: RawChannel | None = None
        self._confirms: Confirms[int] = Confirms()
        self._next_tag = 1
        self._outgoing: Sequence[Outgoing] = ()
        self._refused: set[int] = set()
        self._returned: list[Returned] = []
        self._stored: Stored | None = None
        super().__init__(*args, **kwargs)

    def put(self, outgoing: Sequence[Outgoing], stored: Stored) -> None:
        """
        Store *outgoing* with their properties, whatever the target has against these; *stored* is told when that is settled.
        """
        assert self._stored is None, "one batch at a time"
        self._outgoing = [evolve(out, stripped=False) for out in outgoing]
        self._stored = stored
        if self._channel is not None:
            self._publish(self._channel)

    def _on_open(self, connection: Any) -> None:
        tell_of_alarms(connection, self._notice)
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        channel.confirm_delivery(lambda _: None, callback=partial(self._on_confirming, channel))

    def _on_confirming(self, channel: Any, _: Any) -> None:
        self._channel = self._connection.attach(
            channel, on_confirms=self._on_confirms, on_return=self._returned.append
        )
        if self._stored is not None:
            self._publish(self._channel)

    def _publish(self, channel: RawChannel) -> None:
        self._refused.clear()
        self._returned.clear()
        for index in range(len(self._outgoing)):
            self._confirms.insert(self._next_tag, index)
            self._next_tag += 1
        channel.send(Framing(channel, self._route).messages(self._outgoing))

    def _on_confirms(self, confirms: Sequence[tuple[int, bool, bool]]) -> None:
        for tag, multiple, positive in confirms:
            if positive:
                self._confirms.confirm(tag, multiple=multiple)
            else:
                self._refused.update(self._confirms.reject(tag, multiple=multiple))
        if len(self._confirms) or self._stored is None:
            return
        assert self._channel is not None
        returned = Framing(self._channel, self._route).returned(self._outgoing, self._returned)
        stored, self._stored = self._stored, None
        stored(sorted(self._refused.union(returned)))


class _ThereFraming(Framing):
    """
    Frames for the target's broker, where no exchange leads to the trash: what does not fit is told, not put aside.
    """

    def _published(self, delivery: Delivery, exchange: bytes, changed: bytes | None) -> tuple[bytes, bytes]:
        return self._framed(delivery, exchange, changed)


class AcrossForwarder(ConfirmedForwarder):
    """
    Forward with a confirm for each message; what must not go to the target goes to the trash first.

    Args:
        trash: Gives the link to the trash.
    """

    def __init__(self, channel: RawChannel, route: Route, *args: Any, trash: Callable[[], TrashLink]) -> None:
        super().__init__(channel, route, *args)
        self._framing = _ThereFraming(channel, route)
        self._trash = trash
        #: What follows when the marker of the intent is stored.
        self._following: Callable[[], None] | None = None

    def forward(self, effect: steps.Forward) -> None:
        """
        Publish the batch and the markers in between; the marker of the whole follows the confirms.
        """
        messages = [self._message(out) for out in effect.outgoing]
        aside = [index for index, message in enumerate(messages) if not message]
        if not aside:
            self._publish_batch(effect, messages)
            return
        self._following = partial(self._put_aside, effect, messages, aside)
        intent = [marker for position, marker in effect.between if position == 0]
        self.anchor(steps.Anchor(intent, effect.release))

    def _message(self, out: Outgoing) -> Sequence[bytes]:
        """
        Return the frames of one message; none when it goes to the trash.
        """
        if not out.reason:
            try:
                return self._framing.message(out)
            except InvalidMessageError:
                out.reason = PROPERTIES_TOO_LARGE
        return ()

    def _put_aside(
        self, effect: steps.Forward, messages: Sequence[Sequence[bytes]], aside: Sequence[int]
    ) -> None:
        rest = evolve(effect, between=[part for part in effect.between if part[0]], release=())

        def stored(refused: Iterable[int]) -> None:
            self._publish_batch(rest, messages, [aside[index] for index in refused])

        self._trash().put([effect.outgoing[index] for index in aside], stored)

    def _all_confirmed(self, effect: steps.Forward | steps.Anchor) -> None:
        following, self._following = self._following, None
        if following is not None:
            following()
        else:
            super()._all_confirmed(effect)


class AcrossLink(ForwardingLink):
    """
    Hold the fence in the target's broker and publish there.

    Args:
        trash: Gives the link to the trash.
    """

    def __init__(self, *args: Any, trash: Callable[[], TrashLink], **kwargs: Any) -> None:
        self._trash = trash
        super().__init__(*args, exact=False, **kwargs)

    def _make_forwarder(self, raw: RawChannel) -> AcrossForwarder:
        return AcrossForwarder(raw, self._route, self._tell, trash=self._trash)


class AcrossSession(MoveSession):
    """
    One session of a move from one broker into another.

    Args:
        source: pika's parameters, for the broker that is moved out of.
    """

    def __init__(self, *args: Any, source: pika.connection.Parameters, **options: Any) -> None:
        super().__init__(*args, **options)
        self._source_parameters = source
        self._trash_link: TrashLink | None = None

    def _open_forwarding(self) -> AcrossLink:
        return AcrossLink(
            self._parameters,
            self._loop,
            self._route,
            tell=self._tell,
            on_failed=self._on_failed,
            notice=self._observer.notice,
            trash=self._trash,
        )

    def _trash(self) -> TrashLink:
        """
        Return the link to the trash; most sessions never need one.
        """
        if self._trash_link is None:
            self._trash_link = TrashLink(
                self._source_parameters,
                self._loop,
                self._route,
                tell=self._tell,
                on_failed=self._on_failed,
                notice=self._observer.notice,
            )
        return self._trash_link

    def _links(self) -> Sequence[Link | None]:
        # The one that forwards is the last.
        return self._ingress, self._trash_link, self._forwarding
