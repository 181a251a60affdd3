"""Processes of the outbox's fault tests: a publisher with an outbox, an application that enqueues, a relay."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections import deque
from concurrent.futures import Future
from contextlib import closing
from typing import Any

from dedup.core.identity import Receipt
from dedup.outbox.enqueue import Outbox
from dedup.outbox.opening import is_postgresql, open_to_send
from dedup.outbox.relay import Relay, RelaySettings
from dedup.protocols import BUILT_IN, wire_of
from dedup.publisher import Publisher
from tests.fault.child import Child, Tell, trap_of

#: Messages a publisher has on its way at once.
_AHEAD = 40
#: An application does other things too; seconds.
_PAUSE_S = 0.005


class PublishingProcess(Child):
    """
    A publisher that submits "LIFE-1", "LIFE-2", ... until it is killed, and tells which are kept and which confirmed.

    Settings: protocol, amqp, queue, life, outbox (None: without), count (None: for ever).
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(_publish, settings)


class RelayProcess(Child):
    """
    A relay; settings: amqp, database, kill as for `trap_of`, with the steps "claim" and "delete", until_empty.

    With "forgets" it begins without the numbers that were given before it: what a wrong relay would do.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(_relay, settings)


class ApplicationProcess(Child):
    """
    An application that enqueues "LIFE-1", ... with a business row each, some rolled back, and tells what is committed.

    Settings: protocol, database, queue, life.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(_enqueue, settings)


def _speakers(protocol: str) -> tuple[type[Publisher], type[Outbox]]:
    """Return the publisher and the outbox of a protocol."""
    if protocol == BUILT_IN:
        return Publisher, Outbox
    import proton_adapter

    return proton_adapter.Publisher, proton_adapter.Outbox


def _publish(settings: dict[str, Any], tell: Tell) -> None:
    life, last = settings["life"], settings.get("count")
    ahead: deque[tuple[int, Future[Receipt]]] = deque()
    publisher_type, _ = _speakers(settings["protocol"])
    with publisher_type(
        settings["amqp"], "p", outbox=settings["outbox"], registration="local", confirm_timeout_s=3
    ) as publisher:
        tell("open", {})
        for n in range(1, last + 1) if last else itertools.count(1):
            body = f"{life}-{n}".encode()
            # Every third waits for the disk, the others go on at once.
            if n % 3 == 0 and settings["outbox"]:
                future = publisher.keep(body, queue=settings["queue"])
                tell("kept", {"n": n})
            else:
                future = publisher.submit(body, queue=settings["queue"])
            tell("submitted", {"n": n})
            ahead.append((n, future))
            while ahead and (ahead[0][1].done() or len(ahead) > _AHEAD):
                number, first = ahead.popleft()
                first.result()
                tell("confirmed", {"n": number})
        publisher.flush()


def _relay(settings: dict[str, Any], tell: Tell) -> None:
    trap = trap_of(settings)
    if settings.get("forgets"):
        with closing(sqlite3.connect(settings["database"])) as connection:
            connection.execute("UPDATE dedup_outbox SET sequence = NULL")
            connection.commit()
    with closing(open_to_send(settings["database"])) as store:
        claim, delete = store.claim, store.delete

        def stepping_claim(*arguments: Any) -> int:
            trap.step("before", "claim")
            found = claim(*arguments)
            if found:
                trap.step("after", "claim")
            return found

        def stepping_delete(sequences: Any) -> None:
            if sequences:
                trap.step("before", "delete")
            delete(sequences)
            if sequences:
                trap.step("after", "delete")

        store.claim, store.delete = stepping_claim, stepping_delete  # type: ignore[assignment, method-assign]
        wanted = RelaySettings(
            register=False, until_empty=settings.get("until_empty", False), confirm_timeout_s=3
        )
        relay = Relay(
            store,
            wire_of(store.protocol),
            settings["amqp"],
            "p",
            wanted,
            progress=lambda sent: tell("sent", {"confirmed": sent.confirmed, "failed": sent.failed}),
        )
        tell("open", {})
        relay.run(lambda: False)


def _enqueue(settings: dict[str, Any], tell: Tell) -> None:
    _, outbox = _speakers(settings["protocol"])
    connection: Any
    if is_postgresql(settings["database"]):
        import psycopg

        connection = psycopg.connect(settings["database"])
    else:
        connection = sqlite3.connect(settings["database"], timeout=30)
    tell("open", {})
    for n in itertools.count(1):
        body = f"{settings['life']}-{n}"
        outbox.enqueue(connection, body.encode(), queue=settings["queue"])
        connection.cursor().execute(f"INSERT INTO business (body) VALUES ('{body}')")
        if n % 7 == 0:
            connection.rollback()
            continue
        connection.commit()
        tell("committed", {"n": n})
        time.sleep(_PAUSE_S)
