"""
Publish from asyncio: the publisher of threads, whose waits are awaited.

Theory of operation
-------------------
There is one sender, in the thread of a :class:`dedup.Publisher`, which goes on with heartbeats and re-sends while the loop is
busy. What it promises is therefore the same here. What would wait is done without:

    connect, close   in one helper thread of this publisher, which does nothing else; so is the wait of keep()
    questions        (resume_point, status) in a thread of the loop's: they are rare, and may take long
    room             the publisher below says that it is full instead of waiting; whoever comes first tries again when messages
                     were settled or an outbox has room, the others queue behind it
    confirms         the sender's thread puts them on a list and wakes the loop once for the whole list

A cancelled task stops waiting, its message does not stop being sent: a number that was given out may be on the wire already.
Before it has a number (while it waits for room) nothing was sent and nothing remains. After that its fate is as if somebody
waited; a failure that nobody is there to hear is logged as ``publish_failed_unheard`` with its sequence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from dedup import publisher as threads
from dedup.aio.publication import Publication
from dedup.aio.signatures import takes
from dedup.aio.unwaiting import NO_TIME_S, FullError, Unwaiting
from dedup.core import inputs
from dedup.core.failures import stays, unflushed
from dedup.core.identity import Receipt
from dedup.core.questions import ResumePoint, Status
from dedup.errors import DedupError, PublisherClosedError, PublishError
from dedup.publisher.deadlines import deadline_of, left_s

_LOG = logging.getLogger("dedup.publisher")


class Publisher:
    """
    Publish from asyncio under one stable publisher id; arguments and errors are those of :class:`dedup.Publisher`.

    Connects when it is entered, ``async with Publisher(...)``, or by ``await Publisher.connect(...)``, and belongs to the event
    loop it was connected in, where *receipts* is called too. Any number of tasks may publish at once. One that was not closed
    is closed when its loop ends as ``asyncio.run`` ends one.

    Cancelling a task that waits for a confirm leaves its message on its way, under its number: nothing is sent twice, nothing is
    taken back, and a failure that nobody waits for any more is logged with the number. Give a *timeout* instead of cancelling
    (``asyncio.timeout``) where the receipt is wanted: the error carries it, and :meth:`retry` takes it.
    """

    @takes(threads.Publisher.__init__)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        if (tell := options.get("receipts")) is not None:
            options["receipts"] = lambda told: self._wake(partial(tell, told))
        self._make = partial(Unwaiting, self._on_room, *arguments, **options)
        self._publisher: Unwaiting | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The thread for what can only be waited for.
        self._helper: ThreadPoolExecutor | None = None
        self._shutdown: AsyncGenerator[None, None] | None = None
        self._closed: asyncio.Future[None] | None = None
        #: Each message on its way -> who waits for it, or did before being cancelled.
        self._waiting: dict[threads.Publication, list[Publication]] = {}
        #: Settled in the sender's thread, not yet told in the loop.
        self._settled: deque[threads.Publication] = deque()
        self._awake = False
        #: Set, and replaced, when messages were settled or the publisher is closed.
        self._news = asyncio.Event()
        #: Tasks that wait for room queue here: the first one tries, in the order in which they came.
        self._turn = asyncio.Lock()
        self._wanting_room = 0

    @classmethod
    @takes(threads.Publisher.__init__)
    async def connect(cls, *arguments: Any, **options: Any) -> Publisher:
        """
        Return a connected publisher; arguments and errors are those of :class:`dedup.Publisher`.
        """
        return await cls(*arguments, **options).__aenter__()

    @takes(threads.Publisher.publish)
    async def publish(
        self,
        body: Any,
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> Receipt:
        """
        Publish one message and wait until the broker has it; arguments and errors are those of :meth:`dedup.Publisher.publish`.
        """
        deadline = deadline_of(timeout)
        return await self._result(await self.submit(body, timeout=timeout, **options), deadline)

    @takes(threads.Publisher.submit)
    async def submit(
        self,
        body: Any,
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> Publication:
        """
        Publish one message without waiting for its confirm; arguments and errors are those of :meth:`dedup.Publisher.submit`.

        Waits only while the buffer is full. Messages go out in the order in which their submits began. The future that is
        returned may be cancelled; the message is not.
        """
        deadline = deadline_of(timeout)
        if not self._wanting_room:
            with suppress(FullError):
                return self._watch(self._open_publisher().submit(body, timeout=timeout, **options))
        self._wanting_room += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s(deadline)), self._turn:
                    while True:
                        left = None if deadline is None else max(deadline - time.monotonic(), NO_TIME_S)
                        news = self._news
                        with suppress(FullError):
                            return self._watch(self._open_publisher().submit(body, timeout=left, **options))
                        await news.wait()
            return self._watch(self._open_publisher().submit(body, timeout=NO_TIME_S, **options))
        finally:
            self._wanting_room -= 1

    @takes(threads.Publisher.keep)
    async def keep(
        self,
        body: Any,
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> Publication:
        """
        Publish one message and wait until it is in the outbox, on disk; as :meth:`dedup.Publisher.keep`.
        """
        publisher, deadline = self._open_publisher(), deadline_of(timeout)
        publisher.pipeline.check_outbox()
        future: Publication = await self.submit(body, timeout=timeout, **options)
        try:
            async with asyncio.timeout(left_s(deadline)):
                await self._in_helper(partial(publisher.pipeline.wait_kept, future.below, deadline))
        except BaseException as error:
            future.cancel()
            if isinstance(error, TimeoutError) and not isinstance(error, DedupError):
                raise stays(Receipt(publisher.publisher_id, future.sequence, 0)) from None
            raise
        return future

    @takes(threads.Publisher.retry)
    async def retry(
        self,
        receipt: Receipt,
        timeout: float | None = None,
    ) -> Receipt:
        """
        Send a given-up message again under its own sequence, and wait until the broker has it; as :meth:`dedup.Publisher.retry`.
        """
        deadline = deadline_of(timeout)
        return await self._result(self.resubmit(receipt, timeout), deadline)

    @takes(threads.Publisher.resubmit)
    def resubmit(self, *arguments: Any, **options: Any) -> Publication:
        """
        Send a given-up message again without waiting for its confirm; as :meth:`dedup.Publisher.resubmit`.
        """
        return self._watch(self._open_publisher().resubmit(*arguments, **options))

    @takes(threads.Publisher.resume_point)
    async def resume_point(self, **options: Any) -> ResumePoint:
        """
        Ask the queues behind a place how far this publisher has come; as :meth:`dedup.Publisher.resume_point`.
        """
        return await asyncio.to_thread(self._open_publisher().resume_point, **options)

    @takes(threads.Publisher.status)
    async def status(self, receipt: Receipt, **options: Any) -> dict[str, Status]:
        """
        Ask the queues behind a place what became of one message; as :meth:`dedup.Publisher.status`.
        """
        return await asyncio.to_thread(self._open_publisher().status, receipt, **options)

    async def flush(self, timeout: float | None = None) -> None:
        """
        Wait until every message submitted before has its fate, those of cancelled tasks too; the futures say which.

        Raises:
            PublishTimeoutError: as :meth:`dedup.Publisher.flush`.
        """
        publisher = self._connected()
        seconds = inputs.check_timeout(timeout)
        pending = set(self._waiting)
        try:
            async with asyncio.timeout(seconds):
                while pending := pending & self._waiting.keys():
                    await self._news.wait()
        except TimeoutError:
            oldest = min(publication.sequence for publication in pending)
            raise unflushed(Receipt(publisher.publisher_id, oldest, 0), len(pending), seconds) from None

    async def close(self) -> None:
        """
        Wait for the confirms of what was submitted, at most *close_timeout_s*, and end the connection.

        The futures of what is unconfirmed then fail with ClosedUnconfirmedError. Closing twice does nothing; closing goes on
        when its task is cancelled.
        """
        await self._close()
        if self._shutdown is not None:
            await self._shutdown.aclose()

    async def __aenter__(self) -> Self:
        if self._publisher is None:
            await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        if self._publisher is None:
            return "<dedup.aio.Publisher not connected>"
        state = "open" if self._closed is None else "closed"
        return f"<dedup.aio.Publisher {self._publisher.publisher_id!r} {state}>"

    # -- opening and closing ------------------------------------------------------------------

    async def _open(self) -> None:
        if self._helper is not None:
            raise DedupError("this publisher is being connected by another task; enter it once")
        self._loop = asyncio.get_running_loop()
        helper = self._helper = ThreadPoolExecutor(1, "dedup-aio")
        making = helper.submit(self._make)
        try:
            self._publisher = await asyncio.wrap_future(making)
        except asyncio.CancelledError:
            helper.submit(_close_unwanted, making)
            raise
        finally:
            if self._publisher is None:
                self._helper = None
                helper.shutdown(wait=False)
        self._shutdown = self._until_shutdown()
        await anext(self._shutdown)

    async def _until_shutdown(self) -> AsyncGenerator[None, None]:
        """
        Close when the loop ends: asyncio finishes the asynchronous generators that have begun, while the loop still runs.
        """
        try:
            yield
        finally:
            await self._close()

    async def _close(self) -> None:
        if self._publisher is None or self._helper is None:
            return
        if self._closed is None:
            self._closed = self._in_helper(self._publisher.close)
            self._tell()
        await asyncio.shield(self._closed)
        self._settle()
        self._helper.shutdown(wait=False)

    def _in_helper(self, call: Callable[[], None]) -> asyncio.Future[None]:
        """
        Do in the helper thread what can only be waited for; one after the other.
        """
        assert self._helper is not None
        return asyncio.wrap_future(self._helper.submit(call))

    def _connected(self) -> Unwaiting:
        if self._publisher is None:
            raise PublisherClosedError(
                "this publisher is not connected; use `async with`, or `await Publisher.connect(...)`"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise DedupError(
                "this publisher belongs to another event loop; make one in this loop, under its own publisher id"
            )
        return self._publisher

    def _open_publisher(self) -> Unwaiting:
        publisher = self._connected()
        if self._closed is not None:
            raise PublisherClosedError("this publisher is closed; make a new one")
        return publisher

    # -- what becomes of messages -------------------------------------------------------------

    def _watch(self, below: threads.Publication) -> Publication:
        assert self._loop is not None
        future = Publication(below, self._loop)
        if below in self._waiting:
            self._waiting[below].append(future)
        else:
            self._waiting[below] = [future]
            below.add_done_callback(self._on_settled)
        return future

    async def _result(self, future: Publication, deadline: float | None) -> Receipt:
        """
        Wait for the fate of a message; one that is in an outbox stays on its way when the time is up.
        """
        if deadline is None or self._connected().pipeline.journal is None:
            return await future
        try:
            async with asyncio.timeout(left_s(deadline)):
                return await future
        except TimeoutError:
            if future.cancelled():
                raise stays(Receipt(self._connected().publisher_id, future.sequence, 0)) from None
            raise

    def _on_room(self) -> None:
        if self._wanting_room:
            self._wake(self._tell)

    def _on_settled(self, publication: Any) -> None:
        """
        Hear of a fate, in the sender's thread: one wake-up serves all that come before it is answered.
        """
        self._settled.append(publication)
        if self._awake:
            return
        self._awake = True
        self._wake(self._settle)

    def _wake(self, act: Callable[[], None]) -> None:
        assert self._loop is not None
        # A loop that is closed has nobody left to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)

    def _settle(self) -> None:
        """
        Tell every waiter its fate, in the loop.
        """
        self._awake = False
        while self._settled:
            below = self._settled.popleft()
            error = below.exception()
            waiting = [future for future in self._waiting.pop(below) if not future.done()]
            for future in waiting:
                if error is None:
                    future.set_result(below.result())
                else:
                    future.set_exception(error)
                    future.exception()  # logged by the publisher below: asyncio need not, where nobody awaits it
            if not waiting:
                self._log_unheard(error)
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _log_unheard(self, error: BaseException | None) -> None:
        if isinstance(error, PublishError):
            _LOG.warning(
                "publish_failed_unheard publisher_id=%r sequence=%d error=%r",
                error.receipt.publisher_id,
                error.receipt.sequence,
                str(error),
            )


def _close_unwanted(making: Future[Unwaiting]) -> None:
    """
    Close what was connected for a task that was cancelled meanwhile.
    """
    if not making.cancelled() and making.exception() is None:
        making.result().close()
