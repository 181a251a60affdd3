"""
A publisher as a process of its own, which kills itself at a named step and resumes from what its parent has noted.

Row *n* of its source is always published with sequence *n*, so a row that is published again names itself.
"""

from __future__ import annotations

from typing import Any

from dedup.publisher import Publisher
from dedup.sender_thread import SenderThread
from tests.fault.child import Child, Tell, trap_of


def publisher_type(protocol: str) -> type[Publisher]:
    """Return the SDK's publisher of *protocol*; that of AMQP 1.0 needs a library that may be missing where nobody asks for it."""
    if protocol == "amqp091":
        return Publisher
    import proton_adapter

    return proton_adapter.Publisher


class PublisherProcess(Child):
    """One life of the publisher."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(run, settings)


def run(settings: dict[str, Any], tell: Tell) -> None:
    """
    Publish the rows from *first* to *last* and tell of each that is confirmed, in order.

    Args:
        settings: amqp, protocol, queue, first, last; kill with the steps "Send" and "Confirmed" of the SDK's machine.
        tell: Told of each confirmed row.
    """
    trap = trap_of(settings)
    perform = SenderThread._perform

    def trapped(thread: SenderThread, effect: Any) -> None:
        trap.step("before", type(effect).__name__)
        perform(thread, effect)
        trap.step("after", type(effect).__name__)

    SenderThread._perform = trapped  # type: ignore[method-assign, assignment]
    first, last = settings["first"], settings["last"]
    with publisher_type(settings["protocol"])(settings["amqp"], "p", base=first - 1) as publisher:
        rows = range(first, last + 1)
        futures = [publisher.submit(b"m%d" % row, queue=settings["queue"]) for row in rows]
        for row, future in zip(rows, futures, strict=True):
            future.result()
            tell("confirmed", {"row": row})
