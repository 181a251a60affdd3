"""Publish with pika's callbacks, many messages on their way at once; AsyncioConnection and others take the same methods."""

import sys
from collections import deque
from typing import Any

import pika
from pika.adapters.select_connection import IOLoop

from dedup import Stamp, Stamper, WindowFullError

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"


class Shop:
    """Orders on their way to the broker, over one channel after the other."""

    def __init__(self, orders: list[bytes]) -> None:
        self.stamper = Stamper("shop-5")
        self.loop = IOLoop()
        self.waiting = deque(orders)
        #: Sequence -> order, until it is confirmed.
        self.orders: dict[int, bytes] = {}
        #: Delivery tag of this channel -> its stamp; a channel counts its publishes from 1.
        self.tags: dict[int, Stamp] = {}
        self.tag = 0
        self.confirmed = self.sent_again = 0

    def connect(self) -> None:
        """Begin to connect; each failure begins again."""
        pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.on_channel),
            on_open_error_callback=lambda *_: self.loop.call_later(0.2, self.connect),
            on_close_callback=lambda *_: self.on_lost(),
            custom_ioloop=self.loop,
        )

    def on_lost(self) -> None:
        """Connect again, unless all is done."""
        if self.orders or self.waiting:
            self.loop.call_later(0.2, self.connect)
        else:
            self.loop.stop()

    def on_channel(self, channel: Any) -> None:
        """Send what was not confirmed, oldest first, before anything new: the tags of the old channel mean nothing now."""
        self.tags, self.tag = {}, 0
        channel.add_on_return_callback(self.on_return)
        channel.confirm_delivery(lambda frame: self.on_confirm(channel, frame.method))
        for stamp in self.stamper.lost():
            self.send(channel, self.stamper.again(stamp))
            self.sent_again += 1
        self.send_new(channel)

    def on_return(self, *_: Any) -> None:
        """Give up: the confirm that follows would be no success."""
        raise SystemExit("no queue orders.dedup: guard the queue first")

    def on_confirm(self, channel: Any, confirm: Any) -> None:
        """Settle each message that the confirm is about; one that is nacked is sent again."""
        about = [tag for tag in self.tags if tag <= confirm.delivery_tag] if confirm.multiple else []
        for tag in about or [confirm.delivery_tag]:
            stamp = self.tags.pop(tag)
            if isinstance(confirm, pika.spec.Basic.Ack):
                self.stamper.confirmed(stamp)
                del self.orders[stamp.sequence]
                self.confirmed += 1
            else:
                self.send(channel, self.stamper.again(stamp))
        self.send_new(channel)
        if not self.orders and channel.is_open:
            channel.connection.close()

    def send_new(self, channel: Any) -> None:
        """Send new orders, ten at once."""
        while self.waiting and len(self.tags) < 10:
            try:
                stamp = self.stamper.stamp()
            except WindowFullError:
                return  # too far above the oldest unconfirmed one: confirms go first
            self.orders[stamp.sequence] = self.waiting.popleft()
            self.send(channel, stamp)

    def send(self, channel: Any, stamp: Stamp) -> None:
        """Publish, and remember under which tag the confirm will come."""
        self.tag += 1
        self.tags[self.tag] = stamp
        properties = self.stamper.properties(stamp)
        channel.basic_publish("", "orders.dedup", self.orders[stamp.sequence], properties, mandatory=True)


shop = Shop([b"select, order %d" % number for number in range(100)])
shop.connect()
shop.loop.start()
print(f"{shop.confirmed} orders confirmed, {shop.sent_again} sent again")
