"""
Publish as several applications in one process that may be killed: each resumes from its own record, under the same numbers.

Usage: python publishing.py JSON, an object with
    url         of the broker, through a link that fails
    exchange    where to publish
    publishers  their ids
    directory   of their records

A line on stdin is a number, up to which each may publish, or "end": wait for every confirm and end. The end of stdin means
that the runner is no more. Events of a history go to stdout, a line each, in one piece: what a pipe takes at once is never torn.

Message n of a publisher has sequence n. A record says how many of them are confirmed without a gap; it is written in place
after each confirm, so a record that is behind costs copies and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from dedup import Publisher, Receipt

#: Silence after which a publisher takes its connection for dead; seconds.
CONFIRM_TIMEOUT_S: Final = 1.5
#: A server that was killed needs longer than any fault of a link; seconds.
CONNECT_TIMEOUT_S: Final = 60.0


class Record:
    """
    What one publisher remembers of itself over a kill.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        self.confirmed = int(os.pread(self._file, 100, 0) or 0)
        self._ahead: set[int] = set()

    def confirm(self, number: int) -> None:
        """
        Remember that message *number* is confirmed.
        """
        self._ahead.add(number)
        while self.confirmed + 1 in self._ahead:
            self.confirmed += 1
            self._ahead.remove(self.confirmed)
        # The same length each time, and in one page: it is the old record or the new one.
        os.pwrite(self._file, b"%020d" % self.confirmed, 0)


class Application:
    """
    One publisher with its messages: the n-th is named after it and n.
    """

    def __init__(self, url: str, exchange: str, publisher_id: str, directory: Path) -> None:
        self.id = publisher_id
        self._exchange = exchange
        self._record = Record(directory / f"{publisher_id}.record")
        self._asked = self._record.confirmed
        if self._asked:
            tell("resume", publisher=self.id, sequence=self._asked + 1)
        self._publisher = Publisher(
            url,
            publisher_id,
            base=self._asked,
            confirm_timeout_s=CONFIRM_TIMEOUT_S,
            connect_timeout_s=CONNECT_TIMEOUT_S,
        )

    def publish(self, up_to: int) -> None:
        """
        Publish the messages up to number *up_to* that were not published yet.
        """
        while self._asked < up_to:
            self._asked += 1
            number, message = self._asked, f"{self.id} {self._asked}"
            tell("ask", publisher=self.id, message=message, sequence=number)
            future = self._publisher.submit(message.encode(), exchange=self._exchange)
            future.add_done_callback(partial(self._on_settled, number, message))

    def end(self) -> None:
        """
        Wait for every confirm.
        """
        self._publisher.flush()
        self._publisher.close()

    def _on_settled(self, number: int, message: str, future: Future[Receipt]) -> None:
        error = future.exception()
        if error is not None:
            tell("failed", publisher=self.id, message=message, why=repr(error))
            return
        tell("confirmed", publisher=self.id, message=message, attempts=future.result().attempts)
        self._record.confirm(number)


def tell(event: str, **facts: Any) -> None:
    """
    Tell the runner one event.
    """
    os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


def _listen(asked: SimpleQueue[str]) -> None:
    """
    Pass on what the runner says; end with it, for nothing will be confirmed any more.
    """
    for line in sys.stdin:
        asked.put(line.strip())
    os._exit(1)


def main(options: dict[str, Any]) -> None:
    """
    Publish until the runner says that it is enough.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # each fault makes them warn
    asked: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    directory = Path(options["directory"])
    applications = [
        Application(options["url"], options["exchange"], publisher, directory)
        for publisher in options["publishers"]
    ]
    while (line := asked.get()) != "end":
        for application in applications:
            application.publish(int(line))
    for application in applications:
        application.end()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
