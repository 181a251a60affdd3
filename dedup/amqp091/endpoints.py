"""Keep the hosts of a URL list: which one is next, and why the others failed."""

from __future__ import annotations

from collections.abc import Iterable
from ssl import SSLContext
from typing import Any

import pika

from dedup.amqp091.failures import translate
from dedup.amqp091.parameters import connection_parameters
from dedup.errors import BrokerUnavailableError, ConfigError, DedupError


class Endpoints:
    """
    The hosts of a URL list, taken in turn.
    """

    def __init__(
        self, urls: str | Iterable[str], *, name: str, ssl_context: SSLContext | None = None
    ) -> None:
        """
        Raises:
            ConfigError: a URL that cannot be used, or a TLS context without an amqps:// URL.
        """
        self.parameters = connection_parameters(urls, name=name)
        if ssl_context is not None:
            secure = [one for one in self.parameters if one.ssl_options is not None]
            if not secure:
                raise ConfigError("ssl_context needs an amqps:// URL; there is none")
            for one in secure:
                one.ssl_options = pika.SSLOptions(ssl_context, one.ssl_options.server_hostname or one.host)
        #: The last failure of each host.
        self.failures: dict[int, DedupError] = {}
        self._current = -1

    def next(self) -> Any:
        """
        Return pika's parameters of the next host.
        """
        self._current = (self._current + 1) % len(self.parameters)
        return self.parameters[self._current]

    def name(self, index: int | None = None) -> str:
        """
        Return a host's address for people; the current one by default.
        """
        one = self.parameters[self._current if index is None else index]
        return f"{'amqps' if one.ssl_options else 'amqp'}://{one.host}:{one.port}"

    def fail(self, error: BaseException) -> str:
        """
        Note that the current host failed, and return why.
        """
        try:
            failure = translate(error, where=self.name())
        except BaseException as unknown:  # noqa: BLE001 - translate() gives back what is no failure of a network
            failure = BrokerUnavailableError(f"{self.name()}: {unknown!r}")
        self.failures[self._current] = failure
        return str(failure)

    def hopeless(self) -> ConfigError | None:
        """
        Return an error when every host has refused for a reason that waiting does not mend.
        """
        texts = dict.fromkeys(
            str(failure) for failure in self.failures.values() if isinstance(failure, ConfigError)
        )
        refused = [failure for failure in self.failures.values() if isinstance(failure, ConfigError)]
        return ConfigError("; ".join(texts)) if len(refused) == len(self.parameters) else None

    def describe(self) -> str:
        """
        Return what is known of each host that was tried.
        """
        if not self.failures:
            return f"{', '.join(self.name(index) for index in range(len(self.parameters)))}: no answer"
        return "; ".join(dict.fromkeys(str(failure) for failure in self.failures.values()))
