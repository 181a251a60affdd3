"""Turn AMQP URLs into pika's connection parameters; what a URL gets wrong is said before anything connects."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import pika

from dedup.core.urls import mask_url, split_urls
from dedup.errors import ConfigError

#: Query parameters of RabbitMQ's URI specification that pika does not know; they describe TLS.
_TLS_PARAMETERS: Final[tuple[str, ...]] = (
    "cacertfile",
    "certfile",
    "keyfile",
    "verify",
    "server_name_indication",
)


def connection_parameters(
    urls: str | Iterable[str],
    *,
    name: str,
    heartbeat_s: int = 30,
    blocked_timeout_s: float | None = None,
) -> list[pika.connection.Parameters]:
    """
    Return pika's parameters for every URL, in order.

    A URL's query takes what pika's ``URLParameters`` takes and, as RabbitMQ's URI specification has it, ``cacertfile``,
    ``certfile``, ``keyfile``, ``verify`` (``verify_none``) and ``server_name_indication`` for ``amqps``, and
    ``auth_mechanism=external``, which logs in with the client certificate instead of user and password.

    Args:
        urls: one URL, several separated by commas, or a list.
        name: what the management interface shows as the connection's name.
        heartbeat_s: used where the URL says nothing; 0 would leave a dead link unnoticed.
        blocked_timeout_s: close a connection that an alarm blocks for longer; None waits, as for a slow broker.

    Raises:
        ConfigError: a URL that cannot be used; the message names it without its password.
    """
    texts = [urls] if isinstance(urls, str) or not isinstance(urls, Iterable) else list(urls)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"an AMQP URL is text, not {type(text).__name__}; pass one, or a list of them")
    singles = split_urls(texts)
    if not singles:
        raise ConfigError("no AMQP URL given; pass one such as amqp://user:password@host:5672/%2F")
    return [_parameters(url, name, heartbeat_s, blocked_timeout_s) for url in singles]


def _parameters(
    url: str, name: str, heartbeat_s: int, blocked_timeout_s: float | None
) -> pika.connection.Parameters:
    _check(url)
    parts = urlsplit(url)
    query = parse_qs(parts.query, keep_blank_values=True)
    tls = {key: query.pop(key)[-1] for key in _TLS_PARAMETERS if key in query}
    if tls and parts.scheme.lower() != "amqps":
        raise ConfigError(f"{mask_url(url)}: {', '.join(tls)} needs an amqps:// URL")
    mechanism = query.pop("auth_mechanism", ["plain"])[-1].lower()
    if mechanism not in {"plain", "external"}:
        raise ConfigError(f"{mask_url(url)}: auth_mechanism is plain or external, not {mechanism!r}")
    if mechanism == "external" and "certfile" not in tls:
        raise ConfigError(
            f"{mask_url(url)}: auth_mechanism=external needs amqps:// with certfile and keyfile"
        )
    try:
        parameters = pika.URLParameters(urlunsplit(parts._replace(query=urlencode(query, doseq=True))))
        if tls:
            parameters.ssl_options = _ssl_options(tls, parameters.host)
        if mechanism == "external":
            parameters.credentials = pika.credentials.ExternalCredentials()
    except (ValueError, TypeError, AttributeError, SyntaxError, OSError) as error:
        # The text may quote the query: only where nothing in it is secret, and never as a chained exception.
        detail = str(error) if mask_url(url).endswith(parts.query) else "one of its query parameters is wrong"
        raise ConfigError(f"{mask_url(url)}: {detail}") from None
    if "heartbeat" not in query:
        parameters.heartbeat = heartbeat_s
    if "blocked_connection_timeout" not in query:
        parameters.blocked_connection_timeout = blocked_timeout_s
    properties: dict[str, Any] = {"connection_name": name, **(parameters.client_properties or {})}
    properties.pop(
        "capabilities", None
    )  # would replace pika's: nacks, cancel notices and connection.blocked would stop
    parameters.client_properties = properties
    return parameters


def _check(url: str) -> None:
    """
    Refuse what pika would misread, crash on or answer with the password in the message.
    """
    shown = mask_url(url)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigError(
            f"{shown}: no valid host and port; percent-encode '/', '@', ':' and '#' in user and password"
        ) from None
    if parts.scheme.lower() not in {"amqp", "amqps"}:
        raise ConfigError(f"{shown}: not an AMQP URL; it begins with amqp:// or amqps://")
    if parts.fragment:
        raise ConfigError(f"{shown}: '#' ends a URL; percent-encode it as %23")
    if parts.username is not None and parts.password is None:
        raise ConfigError(f"{shown}: a user without a password; write user:password@host")
    if parts.path.count("/") > 1:
        raise ConfigError(f"{shown}: a '/' in the virtual host's name is written %2F")


def _ssl_options(tls: dict[str, str], host: str) -> pika.SSLOptions:
    context = ssl.create_default_context(cafile=tls.get("cacertfile"))
    if tls.get("verify", "verify_peer") == "verify_none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.get("verify", "verify_peer") != "verify_peer":
        raise ValueError(f"verify is verify_peer or verify_none, not {tls['verify']!r}")
    if "certfile" in tls:
        context.load_cert_chain(tls["certfile"], tls.get("keyfile"))
    return pika.SSLOptions(context, tls.get("server_name_indication", host))
