"""Refuse what cannot be published, or set, before anything is sent and before a sequence is used."""

from __future__ import annotations

from collections.abc import Iterable

from dedup.core.identity import Receipt
from dedup.core.names import ingress
from dedup.core.window import WINDOW_SIZE_MAX
from dedup.errors import ConfigError, DedupError, InvalidMessageError

#: Longest exchange name and routing key in bytes of UTF-8 (AMQP 0.9.1, short string).
NAME_BYTES_MAX = 255
#: Longest wait for an answer; seconds.
PATIENCE_S_MAX = 28 * 86_400
#: Longest time of all, a century: what is longer overflows a clock somewhere; seconds.
SECONDS_MAX = 36_525 * 86_400


def check_body(body: object, bytes_max: int) -> bytes:
    """
    Return *body* as bytes that nobody else can change.

    Raises:
        InvalidMessageError: not bytes, or too many.
    """
    if isinstance(body, str):
        raise InvalidMessageError(
            "a body is bytes, not str; pass body.encode() and name the encoding to your consumers"
        )
    if isinstance(body, memoryview):
        size = body.nbytes
    elif isinstance(body, bytes | bytearray):
        size = len(body)
    else:
        raise InvalidMessageError(f"a body is bytes, bytearray or memoryview, not {type(body).__name__}")
    if size > bytes_max:
        raise InvalidMessageError(
            f"the body has {size} bytes, body_bytes_max is {bytes_max}; a current RabbitMQ takes 16 MiB unless its "
            "max_message_size says otherwise: raise both, or store the content elsewhere and send its name"
        )
    return body if type(body) is bytes else bytes(body)


def check_place(exchange: object, routing_key: object, queue: object) -> tuple[str, str]:
    """
    Return exchange and routing key to publish with; *queue* is a guarded queue by its own name, in their stead.

    Raises:
        InvalidMessageError: not text, too long, both, or neither.
    """
    for what, name in (
        ("exchange", exchange),
        ("routing_key", routing_key),
        ("queue", "" if queue is None else queue),
    ):
        if not isinstance(name, str):
            raise InvalidMessageError(f"{what} is a str, not {type(name).__name__}")
    assert isinstance(exchange, str)
    assert isinstance(routing_key, str)
    if queue is not None:
        assert isinstance(queue, str)
        if exchange or routing_key:
            raise InvalidMessageError("pass a guarded queue, or exchange and routing_key, not both")
        if not queue:
            raise InvalidMessageError("queue is empty; pass the name of a guarded queue")
        routing_key = ingress(queue)
    elif not exchange and not routing_key:
        raise InvalidMessageError("say where to publish: queue=, or exchange= and routing_key=")
    for what, name in (("exchange", exchange), ("routing key", routing_key)):
        _check_name(what, name)
    return exchange, routing_key


def _check_name(what: str, name: str) -> None:
    if len(name) * 4 <= NAME_BYTES_MAX and name.isascii():
        return
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"the {what} has a lone surrogate, which UTF-8 cannot hold") from error
    if size > NAME_BYTES_MAX:
        raise InvalidMessageError(
            f"the {what} has {size} bytes of UTF-8, AMQP carries at most {NAME_BYTES_MAX}; shorten it"
        )


def check_timeout(timeout: object) -> float | None:
    """
    Return *timeout*: None, or a positive finite number of seconds.

    Raises:
        InvalidMessageError: anything else.
    """
    return None if timeout is None else check_seconds("timeout", timeout, InvalidMessageError)


def check_seconds(name: str, value: object, error: type[DedupError] = ConfigError) -> float:
    """
    Return *value* when it is a positive number, a century at the most; *name* is what the caller knows it by.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise error(f"{name} is a number of seconds, not {type(value).__name__}")
    if not 0 < value <= SECONDS_MAX:  # NaN is not either
        raise error(f"{name} is a positive number of seconds, at most a century ({SECONDS_MAX})")
    return float(value)


def check_count(name: str, value: object, low: int, high: int | None = None) -> int:
    """
    Return *value* when it is an int from *low* to *high*.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is an int, not {type(value).__name__}")
    if value < low or (high is not None and value > high):
        raise ConfigError(
            f"{name} is at least {low}" + ("" if high is None else f" and at most {high}") + f", not {value}"
        )
    return value


def check_window_size(value: object) -> int:
    """
    Return *value* when it is the size of a window that half of can be unconfirmed, and that a shim may have.

    Raises:
        ConfigError: it is not.
    """
    return check_count("window_size", value, 2, WINDOW_SIZE_MAX)


def check_patience(timeout: object) -> float:
    """
    Return how long to wait for an answer, in seconds; the message broker's expiration cannot say more than four weeks.

    Raises:
        InvalidMessageError: not a positive number, or more than that.
    """
    seconds = check_seconds("timeout", timeout, InvalidMessageError)
    if seconds > PATIENCE_S_MAX:
        raise InvalidMessageError(f"timeout is at most {PATIENCE_S_MAX} seconds, not {seconds:g}")
    return seconds


def check_queues(queues: object) -> tuple[str, ...] | None:
    """
    Return the names of guarded queues whose answers are awaited; None when nobody knows them.

    Raises:
        InvalidMessageError: no names, one text, or nothing at all.
    """
    if queues is None:
        return None
    if isinstance(queues, str) or not isinstance(queues, Iterable):
        raise InvalidMessageError("queues is a list of the names of guarded queues, such as ['orders']")
    named = tuple(queues)
    if not named or not all(isinstance(queue, str) and queue for queue in named):
        raise InvalidMessageError("queues names at least one guarded queue, each as a str that is not empty")
    return named


def check_receipt(name: str, receipt: object, publisher_id: str) -> None:
    """
    Refuse what is no receipt of this publisher; *name* is the method that takes it.

    Raises:
        InvalidMessageError: it is something else, or another publisher's.
    """
    if not isinstance(receipt, Receipt):
        raise InvalidMessageError(
            f"{name}() takes a receipt, as of a result or an error, not {type(receipt).__name__}"
        )
    if receipt.publisher_id != publisher_id:
        raise InvalidMessageError(
            f"the receipt belongs to publisher {receipt.publisher_id!r}, this is {publisher_id!r}"
        )


def check_registration(registration: object, base: object, *, takeover: object) -> bool:
    """
    Say whether the publisher id is to be registered: unless its caller says otherwise or keeps the numbers.

    Raises:
        ConfigError: neither "broker" nor "local", or together with what it rules out.
    """
    if registration not in (None, "broker", "local"):
        raise ConfigError(f'registration is "broker" or "local", not {registration!r}')
    if registration == "broker" and base is not None:
        raise ConfigError('a registry hands out the base: leave base out, or pass registration="local"')
    if not isinstance(takeover, bool):
        raise ConfigError(f"takeover is True or False, not {type(takeover).__name__}")
    registered = registration == "broker" or (registration is None and base is None)
    if takeover and not registered:
        raise ConfigError('takeover=True is about the registration: leave base and registration="local" out')
    return registered
