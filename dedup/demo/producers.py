"""Publish as an application does: one Publisher in a thread, at a steady pace, whatever the link does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

from dedup.core.identity import Receipt
from dedup.errors import DedupError
from dedup.publisher import Publisher
from dedup.testing.oracle import Oracle

#: Silence after which a publisher takes its connection for dead; seconds.
CONFIRM_TIMEOUT_S = 1.0
_PAUSE_S = 0.005


class Producer:
    """
    Publish numbered messages to one exchange, and tell the oracle of each.

    Args:
        url: Of the link, not of the broker.
        name: The publisher id.
        exchange: Where to publish.
        count: How many messages.
        seconds: In what time, if the link lets it.
        oracle: Told of what is asked for and what is confirmed.
        registered: There are shims, which serve the registry.
    """

    def __init__(
        self,
        url: str,
        name: str,
        exchange: str,
        *,
        count: int,
        seconds: float,
        oracle: Oracle,
        registered: bool,
    ) -> None:
        self.name = name
        self._exchange = exchange
        self._count = count
        self._seconds = seconds
        self._oracle = oracle
        #: What ended the thread early, or what befell a message.
        self.failure: BaseException | None = None
        self._publisher = Publisher(
            url,
            name,
            confirm_timeout_s=CONFIRM_TIMEOUT_S,
            close_timeout_s=1.0,
            connect_timeout_s=30.0,
            registration="broker" if registered else "local",
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """
        Begin to publish.
        """
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """
        Whether everything was handed to the publisher.
        """
        return not self._thread.is_alive()

    def flush(self, timeout_s: float) -> None:
        """
        Wait for the confirms of everything.

        Raises:
            PublishTimeoutError: some did not come in time.
        """
        self._publisher.flush(timeout_s)

    def end(self) -> None:
        """
        Stop, whatever is unconfirmed.
        """
        self._ending.set()
        self._publisher.close()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            for number in range(1, self._count + 1):
                due = started + self._seconds * (number - 1) / self._count
                while time.monotonic() < due:
                    if self._ending.wait(_PAUSE_S):
                        return
                self._publish(f"{self.name} {number}")
        except DedupError as error:
            self.failure = error

    def _publish(self, message: str) -> None:
        self._oracle.ask(self.name, message)
        future = self._publisher.submit(message.encode(), exchange=self._exchange)
        future.add_done_callback(partial(self._on_settled, message))

    def _on_settled(self, message: str, future: Future[Receipt]) -> None:
        error = future.exception()
        if error is None:
            self._oracle.confirm(message)
        elif not self._ending.is_set():
            self.failure = error


def produce(
    url: str,
    exchange: str,
    *,
    publishers: int,
    messages: int,
    seconds: float,
    oracle: Oracle,
    registered: bool,
) -> Iterator[Producer]:
    """
    Yield producers that share *messages* fairly; they are connected and not started.
    """
    shares = [messages // publishers + (number < messages % publishers) for number in range(publishers)]
    for number, count in enumerate(shares, start=1):
        yield Producer(
            url,
            f"shop-{number}",
            exchange,
            count=count,
            seconds=seconds,
            oracle=oracle,
            registered=registered,
        )
