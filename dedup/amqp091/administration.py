"""Make the rare administrative requests: declare, bind, look and delete over one blocking connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal

import pika
from attrs import frozen
from pika.exceptions import AMQPError, ChannelClosedByBroker

from dedup.amqp091.failures import translate
from dedup.amqp091.parameters import connection_parameters
from dedup.errors import DedupError, TopologyError

#: Queue types that can be declared around a guarded queue.
QueueType = Literal["classic", "quorum"]
#: A frozen server is given up after this; seconds.
_TIMEOUT_S: Final = 15.0
_NOT_FOUND: Final = 404
_PRECONDITION_FAILED: Final = 406


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
    One connection's requests; each one leaves it usable, whatever the answer was.

    Raises:
        TopologyError: the broker refused; ``reply_code`` and ``reply_text`` say how.
        BrokerUnavailableError: the connection was lost.
    """

    def __init__(self, connection: pika.BlockingConnection, vhost: str) -> None:
        self.vhost = vhost
        #: As the broker says, for example (4, 0); (0,) when it cannot be told.
        self.version = _version(connection)
        self._connection = connection
        self._channel: Any = None

    def count(self, queue: str) -> Counted | None:
        """
        Return what waits in *queue* and who consumes; None when there is no such queue.
        """
        with self._missing_is_none():
            answer = self._request("queue_declare", queue, passive=True).method
            return Counted(answer.message_count, answer.consumer_count)
        return None

    def has_exchange(self, name: str) -> bool:
        """
        Say whether there is an exchange of that name.
        """
        with self._missing_is_none():
            self._request("exchange_declare", name, passive=True)
            return True
        return False

    def declare_queue(self, name: str, arguments: Mapping[str, Any]) -> None:
        """
        Declare a durable queue; one that is there with the same arguments stays as it is.
        """
        with _explained(f"queue {name!r}"):
            self._request("queue_declare", name, durable=True, arguments=dict(arguments))

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
            if_idle: Only when it is empty and without consumers; the broker checks it in the same
                step. Quorum queues know no such step: for them it is checked just before.
        """
        try:
            self._request("queue_delete", name, if_unused=if_idle, if_empty=if_idle)
        except TopologyError as error:
            if getattr(error, "reply_code", 0) == _PRECONDITION_FAILED:
                raise TopologyError(f"queue {name!r} holds messages or has consumers: it was kept") from error
            raise

    def delete_exchange(self, name: str) -> None:
        """
        Delete an exchange, if there is one.
        """
        self._request("exchange_delete", name)

    @contextmanager
    def _missing_is_none(self) -> Iterator[None]:
        try:
            yield
        except TopologyError as error:
            if getattr(error, "reply_code", 0) != _NOT_FOUND:
                raise

    def _request(self, method: str, *arguments: Any, **options: Any) -> Any:
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
        ask: Callable[..., Any] = getattr(self._channel, method)
        try:
            return ask(*arguments, **options)
        except ChannelClosedByBroker as error:
            raise translate(error) from error


@contextmanager
def administration(amqp: str | Iterable[str]) -> Iterator[Administration]:
    """
    Open a connection to the first host of *amqp* that answers.

    Raises:
        BrokerUnavailableError: none did, or the connection was lost.
        ConfigError: the URL, the login or the virtual host is wrong.
    """
    parameters = connection_parameters(amqp, name="dedup administration")
    where = ", ".join(f"{single.host}:{single.port}" for single in parameters)
    for single in parameters:
        single.stack_timeout = single.blocked_connection_timeout = _TIMEOUT_S
    connection = None
    try:
        connection = pika.BlockingConnection(parameters)
        yield Administration(connection, str(parameters[0].virtual_host))
    except (AMQPError, OSError) as error:
        raise _failure(error, where) from error
    finally:
        if connection is not None and connection.is_open:
            with suppress(AMQPError, OSError):
                connection.close()


def _failure(error: BaseException, where: str) -> DedupError:
    return translate(error, where=where)


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


def _version(connection: pika.BlockingConnection) -> tuple[int, ...]:
    # pika keeps what the server said of itself to itself.
    properties = connection._impl.server_properties or {}  # noqa: SLF001
    found = re.match(r"(\d+)\.(\d+)", str(properties.get("version", "")))
    return (int(found[1]), int(found[2])) if found else (0,)
