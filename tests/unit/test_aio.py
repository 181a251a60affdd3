"""The publisher of asyncio offers what the one of threads offers, with the same arguments, whoever adds one to that."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

from dedup import aio, publisher


def public(kind: type) -> set[str]:
    """Return the names of the methods that a user calls."""
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_each_method_is_there() -> None:
    """What one can do, the other can (what waits there goes through the helper thread here); connecting is a step of its own."""
    assert public(publisher.Publisher) == public(aio.Publisher) - {"connect"}


@pytest.mark.parametrize("name", ["__init__", *sorted(public(publisher.Publisher))])
def test_each_method_takes_the_same(name: str) -> None:
    """Arguments, their order, kinds and defaults are those of the publisher of threads, as help() shows them."""
    threads, tasks = (inspect.signature(getattr(kind, name)) for kind in (publisher.Publisher, aio.Publisher))
    assert tasks.parameters == threads.parameters


def test_receipts_are_told_in_the_loop() -> None:
    """Whatever thread hears of them, a callback of asyncio's user runs where it may touch tasks."""
    told: list[tuple[object, bool]] = []

    async def main() -> None:
        here = threading.current_thread()
        tasks = aio.Publisher(
            "amqp://localhost",
            "shop-1",
            receipts=lambda what: told.append((what, threading.current_thread() is here)),
        )
        tasks._loop = asyncio.get_running_loop()
        await asyncio.to_thread(tasks._make.keywords["receipts"], "quarantined")

    asyncio.run(main())
    assert told == [("quarantined", True)]


def test_connect_takes_what_the_class_takes() -> None:
    """One signature serves both ways to connect."""
    taken = inspect.signature(aio.Publisher.connect).parameters
    assert list(taken) == list(inspect.signature(publisher.Publisher).parameters)
