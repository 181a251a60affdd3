"""Turn pika's failures into dedup's: worth trying again, a wrong setting, or a wrong topology."""

from __future__ import annotations

import ssl

from pika.adapters.utils.connection_workflow import (
    AMQPConnectionWorkflowFailed,
    AMQPConnectorException,
    AMQPConnectorPhaseErrorBase,
)
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    AuthenticationError,
    ChannelClosed,
    ConnectionClosed,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    StreamLostError,
)

from dedup.errors import BrokerUnavailableError, ConfigError, DedupError, PartialCommitError, TopologyError

#: What pika raises; where a blocking connection is answered too late that is of a family of its own.
DRIVER_FAILURES = (AMQPError, AMQPConnectorException)
#: What pika or a network raises.
FAILURES = (*DRIVER_FAILURES, OSError)
#: Replies to a channel that say something about queues, exchanges, bindings or permissions (AMQP 0.9.1, section 1.6).
_TOPOLOGY_CODES = frozenset({403, 404, 405, 406})
#: What pika concludes from a connection that ends before it is open.
_GUESSES = IncompatibleProtocolError | ProbableAuthenticationError | ProbableAccessDeniedError


def translate(error: BaseException, *, where: str = "the broker") -> DedupError:
    """
    Return the error of dedup's family that says what *error* means; raise the result ``from`` it.

    Where the broker told a code, it is in ``reply_code`` and ``reply_text``.

    Args:
        error: what a connect, a connection's or a channel's close callback was given.
        where: what was talked to, without secrets (:func:`dedup.core.urls.mask_url`).

    Raises:
        BaseException: *error* itself when it is no failure of a driver or a network; such a one is a bug.
    """
    if isinstance(error, DedupError):
        return error
    if isinstance(error, AMQPConnectionWorkflowFailed):
        return _combine([translate(cause, where=where) for cause in error.exceptions])
    if isinstance(error, AMQPConnectorPhaseErrorBase):
        return translate(error.exception, where=where)
    if type(error) is AMQPConnectionError and error.args and isinstance(error.args[0], BaseException):
        return translate(error.args[0], where=where)
    if isinstance(error, ChannelClosed):
        return _channel_failure(error)
    if isinstance(error, ConnectionClosed):
        text = f"{where} closed the connection: {error.reply_code} {error.reply_text}"
        return BrokerUnavailableError(text, reply_code=error.reply_code, reply_text=error.reply_text)
    if isinstance(error, AuthenticationError | _GUESSES):
        return _handshake_failure(error, where)
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigError(
            f"{where} has a certificate that cannot be verified ({error.verify_message}); see cacertfile"
        )
    if isinstance(error, FAILURES):
        return BrokerUnavailableError(f"{where} cannot be reached: {_tell(error)}")
    raise error


def _handshake_failure(error: BaseException, where: str) -> DedupError:
    # RabbitMQ says why it refuses a connection. Where the stream was lost without a word, which pika keeps in the text
    # alone, a link that fails is as likely as a wrong setting.
    if StreamLostError.__name__ in str(error):
        return BrokerUnavailableError(
            f"{where} was lost before the connection was open; if it stays so, check host, port and whether it wants amqps://"
        )
    if isinstance(error, ProbableAccessDeniedError):
        what = "refused the virtual host; check that it exists and that the user may enter it"
    elif isinstance(error, IncompatibleProtocolError):
        what = "does not speak AMQP 0.9.1; check host, port and whether it wants amqps://"
    else:
        what = "refused the login; check user and password in the URL"
    return ConfigError(f"{where} {what}")


def _combine(errors: list[DedupError]) -> DedupError:
    """
    Make one error of those of several hosts; worth trying again as soon as one of them is.
    """
    texts = "; ".join(dict.fromkeys(str(error) for error in errors))
    if errors and all(isinstance(error, ConfigError) for error in errors):
        return ConfigError(texts)
    return BrokerUnavailableError(texts or None)


def _channel_failure(error: ChannelClosed) -> DedupError:
    code, text = error.reply_code, error.reply_text
    if "partial tx completion" in text:
        kind: type[DedupError] = PartialCommitError
    else:
        kind = TopologyError if code in _TOPOLOGY_CODES else BrokerUnavailableError
    return kind(f"the broker closed the channel: {code} {text}", reply_code=code, reply_text=text)


def _tell(error: BaseException) -> str:
    # An exception without arguments has no text; pika's have one in their repr only.
    return str(error) or repr(error)
