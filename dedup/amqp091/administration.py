"""Make the rare administrative requests: declare, bind, look and delete over one blocking connection."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal

import pika
from attrs import frozen
from pika.exceptions import AMQPError

from dedup.amqp091.failures import FAILURES, translate
from dedup.amqp091.parameters import connection_parameters
from dedup.errors import BrokerUnavailableError, DedupError, TopologyError

#: Queue types that can be declared around a guarded queue.
QueueType = Literal["classic", "quorum"]
#: Queue types that a guarded queue may have.
TargetType = Literal["classic", "quorum", "stream"]
#: A frozen server is given up after this; seconds.
_TIMEOUT_S: Final = 15.0
_NOT_FOUND: Final = 404
#: What a reply of that code begins with when there is no such thing. A queue that is there and cannot be reached, because its
#: node is down or its process has crashed, is "not found" too.
MISSING: Final = "NOT_FOUND - no "
_PRECONDITION_FAILED: Final = 406
_NOT_IMPLEMENTED: Final = 540


@frozen
class Counted:
    """
    What the broker answers about a queue at once.
    """

    #: Ready ones; what a consumer holds is not counted.
    messages: int
    consumers: int


class Administration:
    """
    The requests, over one connection at a time; each leaves this usable, whatever the answer was.

    Args:
        parameters: pika's; the first host that answers is taken.

    Raises:
        TopologyError: the broker refused; ``reply_code`` and ``reply_text`` say how.
        BrokerUnavailableError: no host answers, or the connection was lost.
        ConfigError: the login or the virtual host is wrong.
    """

    def __init__(self, parameters: Sequence[pika.connection.Parameters]) -> None:
        self.vhost = str(parameters[0].virtual_host)
        self._parameters = parameters
        self._connection: Any = None
        self._channel: Any = None

    @property
    def version(self) -> tuple[int, ...]:
        """
        Return the broker's, for example (4, 0); (0,) when it does not say.
        """
        found = re.match(r"(\d+)\.(\d+)", self._said("version"))
        return (int(found[1]), int(found[2])) if found else (0,)

    @property
    def cluster(self) -> str:
        """
        Return the name of the broker's cluster; empty when it does not say.
        """
        return self._said("cluster_name")

    def count(self, queue: str) -> Counted | None:
        """
        Return what waits in *queue* and who consumes; None when there is no such queue.
        """
        answer = self._find("queue_declare", queue)
        return None if answer is None else Counted(answer.message_count, answer.consumer_count)

    def count_from(self, queue: str, exchanges: Collection[str]) -> int:
        """
        Return how many of the messages waiting in *queue* came through one of *exchanges*; each is put back, flagged as redelivered.
        """
        found = 0
        while (method := self._request("basic_get", queue)[0]) is not None:
            found += method.exchange in exchanges
        self._channel.close()
        return found

    def has_exchange(self, name: str) -> bool:
        """
        Say whether there is an exchange of that name.
        """
        return self._find("exchange_declare", name) is not None

    def declare_queue(self, name: str, arguments: Mapping[str, Any]) -> None:
        """
        Declare a durable queue; one that is there with the same arguments stays as it is.
        """
        with _explained(f"queue {name!r}"):
            self._request("queue_declare", name, durable=True, arguments=dict(arguments))

    def declare_own(self, name: str) -> None:
        """
        Declare a queue that nobody else can use and that goes with the connection.
        """
        self._request("queue_declare", name, exclusive=True)

    def declare_exchange(self, name: str, arguments: Mapping[str, Any]) -> None:
        """
        Declare a durable fanout exchange; one that is there with the same arguments stays as it is.
        """
        with _explained(f"exchange {name!r}"):
            self._request("exchange_declare", name, "fanout", durable=True, arguments=dict(arguments))

    def bind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """
        Bind *queue* to *exchange*; a binding that is there stays as it is.
        """
        self._request("queue_bind", queue, exchange, routing_key, arguments=dict(arguments or {}))

    def delete_queue(self, name: str, *, if_idle: bool = False) -> None:
        """
        Delete a queue, if there is one.

        Args:
            if_idle: Only when it is empty and without consumers; the broker checks that in the same
                step. Quorum queues know no such step: of them it is checked just before.
        """
        try:
            self._request("queue_delete", name, if_unused=if_idle, if_empty=if_idle)
        except DedupError as error:
            code = getattr(error, "reply_code", 0)
            if code not in (_PRECONDITION_FAILED, _NOT_IMPLEMENTED):
                raise
            if code == _PRECONDITION_FAILED or not self._seems_idle(name):
                raise TopologyError(f"queue {name!r} holds messages or has consumers: it was kept") from error
            self._request("queue_delete", name)

    def _seems_idle(self, name: str) -> bool:
        """
        Say whether a quorum queue has neither messages nor consumers.

        One without a leader counts none. It does not take a consumer either, so it is asked for that first.

        Raises:
            BrokerUnavailableError: nobody leads it.
        """
        consumer = self._request("basic_consume", name, _ignore)
        self._request("basic_cancel", consumer)
        counted = self.count(name)
        return counted is None or not (counted.messages or counted.consumers)

    def delete_exchange(self, name: str) -> None:
        """
        Delete an exchange, if there is one.
        """
        self._request("exchange_delete", name)

    def close(self) -> None:
        """
        Close the connection, if it is open.
        """
        if self._connection is not None and self._connection.is_open:
            with suppress(AMQPError, OSError):
                self._connection.close()

    def _said(self, what: str) -> str:
        """
        Return what the broker said of itself when it was connected to; empty when it did not.
        """
        self._open()
        # pika keeps it to itself.
        properties = self._connection._impl.server_properties or {}  # noqa: SLF001
        found = properties.get(what, "")
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)

    def _find(self, method: str, name: str) -> Any:
        """
        Return what the broker says about something; None when there is no such thing.

        Raises:
            BrokerUnavailableError: it is there, and out of reach.
        """
        try:
            return self._request(method, name, passive=True).method
        except TopologyError as error:
            if getattr(error, "reply_code", 0) != _NOT_FOUND:
                raise
            text = str(getattr(error, "reply_text", ""))
            if text.startswith(MISSING):
                return None
            raise BrokerUnavailableError(
                f"{name!r} cannot be reached: {text}", reply_code=_NOT_FOUND, reply_text=text
            ) from error

    def _request(self, method: str, *arguments: Any, **options: Any) -> Any:
        self._open()
        ask: Callable[..., Any] = getattr(self._channel, method)
        with self._translated():
            return ask(*arguments, **options)

    def _open(self) -> None:
        with self._translated():
            if self._connection is None or not self._connection.is_open:
                self._connection = self._connected()
                self._channel = None
            if self._channel is None or not self._channel.is_open:
                self._channel = self._connection.channel()

    def _connected(self) -> Any:
        try:
            return pika.BlockingConnection(self._parameters)
        except ssl.SSLError:
            raise  # a certificate that cannot be verified is a ValueError too
        except ValueError as error:
            # pika's word for a socket that is reset as soon as it is connected.
            raise ConnectionResetError(str(error)) from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            where = ", ".join(f"{single.host}:{single.port}" for single in self._parameters)
            raise translate(error, where=where) from error


def _ignore(*_: Any) -> None:
    """
    Take a delivery that goes back when its consumer is cancelled.
    """


@contextmanager
def administration(amqp: str | Iterable[str]) -> Iterator[Administration]:
    """
    Give an :class:`Administration` of the cluster at *amqp*, and close it at the end.

    Raises:
        ConfigError: a URL that cannot be used.
    """
    parameters = connection_parameters(amqp, name="dedup administration")
    for single in parameters:
        single.stack_timeout = single.blocked_connection_timeout = _TIMEOUT_S
    broker = Administration(parameters)
    try:
        yield broker
    finally:
        broker.close()


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """
    Say what to do about something that exists and is not what is needed.
    """
    try:
        yield
    except TopologyError as error:
        if getattr(error, "reply_code", 0) != _PRECONDITION_FAILED:
            raise
        text = str(getattr(error, "reply_text", "")).removeprefix("PRECONDITION_FAILED - ")
        raise TopologyError(
            f"{what} exists and is not what is asked for ({text}); ask for what is there, "
            "or delete it after its messages are moved"
        ) from error
