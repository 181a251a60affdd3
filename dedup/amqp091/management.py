"""Ask RabbitMQ's management HTTP API what AMQP does not tell: arguments, policies, bindings and nodes."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Iterable, Sequence
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from attrs import evolve, field, frozen

from dedup.amqp091.facts import Binding, ExchangeFacts, QueueActivity, QueueFacts, activity_of, queue_of
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.policies import Policies
from dedup.core.urls import mask_url, split_urls
from dedup.errors import BrokerUnavailableError, ConfigError, TopologyError

#: How long one request may take; seconds.
TIMEOUT_S: Final = 5.0
#: How long answers like "503, I am still starting" are waited out; seconds.
STARTING_S: Final = 5.0
#: What is asked about a queue; everything else the API knows costs it work.
_COLUMNS: Final = "columns=name,type,durable,auto_delete,arguments,node"
#: Counts as they are now, asked from each queue; the API's usual ones are up to five seconds old.
_TOTALS: Final = "disable_stats=true&enable_queue_totals=true"


@frozen
class _Place:
    """
    One server of the API.
    """

    base: str
    authorization: str = field(repr=False)
    opener: OpenerDirector = field(repr=False)


class Management:
    """
    A client of the management API; any of its servers will do, the first that answers is asked.

    Args:
        url: ``http://user:password@host:15672``, several separated by commas; empty: the AMQP
            hosts, on port 15672, or with TLS on 15671 where the AMQP URL has TLS.
        amqp: The AMQP URLs; their user, password and certificates serve where *url* has none.
        timeout_s: How long one request may take; seconds.

    Raises:
        ConfigError: a URL that cannot be used.
    """

    def __init__(self, url: str = "", *, amqp: str | Iterable[str], timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        parameters = connection_parameters(amqp, name="dedup")
        if url:
            self._places = [_place(single, parameters[0]) for single in split_urls(url)]
        else:
            self._places = [_place(_beside(single), single) for single in parameters]
        self.url = ", ".join(place.base for place in self._places)

    def queue(self, vhost: str, name: str, policies: Policies | None = None) -> QueueFacts | None:
        """
        Return what the broker holds about a queue; None when there is none of that name.

        Args:
            policies: Of :meth:`policies`, when several queues are asked about.
        """
        found = self._get("queues", vhost, name, query=_COLUMNS)
        return None if found is None else queue_of(found, policies or self.policies(vhost))

    def queues(self, vhost: str) -> list[QueueFacts]:
        """
        Return what the broker holds about every queue, with its messages counted now.
        """
        policies = self.policies(vhost)
        rows = self._get_list("queues", vhost, query=_TOTALS)
        return [evolve(queue_of(row, policies), messages=row.get("messages")) for row in rows]

    def activities(self, vhost: str) -> list[QueueActivity]:
        """
        Return who takes from which queue.
        """
        policies = self.policies(vhost)
        columns = "columns=name,type,consumers,messages,idle_since,arguments"
        return [activity_of(row, policies) for row in self._get_list("queues", vhost, query=columns)]

    def waits_untaken(self, vhost: str, name: str, for_s: int) -> bool:
        """
        Say whether messages have waited in a queue for so many seconds, 10 at least, and nobody has taken one; False when it does not tell.
        """
        every_s = max(5, for_s // 15)
        ages = [f"{what}_age={for_s}&{what}_incr={every_s}" for what in ("msg_rates", "lengths")]
        found = self._get("queues", vhost, name, query="&".join(ages))
        waiting = _samples(found, "messages_details")
        taken = _samples(found, "message_stats", "deliver_get_details")
        return bool(waiting) and all(waiting) and len(set(taken)) < 2

    def quorum_status(self, vhost: str, name: str) -> list[dict[str, Any]] | None:
        """
        Return what the members of a quorum queue tell of themselves, one row each; None when there is no such queue.

        RabbitMQ 3.13.7 and later can tell it; to earlier ones, and of other types of queue, it is an error.
        """
        # 4.0.5 answers 500 for as long as a member is down: no reason to wait.
        found = self._get("queues", "quorum", vhost, name, "status", patience_s=0.0)
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise ConfigError(f"{self.url} does not answer with the members of a quorum queue")
        return found

    def consumer_nodes(self, vhost: str, name: str) -> list[str]:
        """
        Return the nodes that the consumers of a queue are connected to, up to 5 seconds late.
        """
        found = self._get("queues", vhost, name, patience_s=0.0)
        consumers = found.get("consumer_details") if isinstance(found, dict) else None
        channels = [row.get("channel_details") for row in consumers or () if isinstance(row, dict)]
        return [
            str(channel["node"]) for channel in channels if isinstance(channel, dict) and "node" in channel
        ]

    def exchange(self, vhost: str, name: str, policies: Policies | None = None) -> ExchangeFacts | None:
        """
        Return what the broker holds about an exchange; None when there is none of that name.
        """
        found = self._get("exchanges", vhost, name, query="columns=name,type,durable,auto_delete,arguments")
        if found is None:
            return None
        policies = policies or self.policies(vhost)
        bindings = self._get_list("exchanges", vhost, name, "bindings", "source")
        return ExchangeFacts(
            found["name"],
            found["type"],
            found["durable"],
            found["auto_delete"],
            policies.settings(found["name"], "exchanges", found["arguments"]),
            [binding["destination"] for binding in bindings],
        )

    def bindings(self, vhost: str, queue: str) -> list[Binding]:
        """
        Return the bindings of a queue, without the one every queue has to the default exchange.
        """
        rows = self._get_list("queues", vhost, queue, "bindings")
        return [
            Binding(
                row["source"], queue, row["routing_key"], dict(row["arguments"] or {}), row["properties_key"]
            )
            for row in rows
            if row["source"]
        ]

    def remove(self, vhost: str, binding: Binding) -> None:
        """
        Remove a binding of a queue; nothing happens when it is gone.

        Over AMQP an unbind has to repeat the arguments with their types, which the API does not tell.
        """
        path = ("bindings", vhost, "e", binding.source, "q", binding.destination, binding.key)
        self._request("DELETE", path)

    def policies(self, vhost: str) -> Policies:
        """
        Return the policies of a virtual host, as they are now.
        """
        return Policies(self._get_list("policies", vhost), self._get_list("operator-policies", vhost))

    def nodes(self) -> list[str]:
        """
        Return the names of the cluster's nodes, running or not; the user needs the tag "monitoring".
        """
        return [node["name"] for node in self._get_list("nodes", query="columns=name")]

    def cluster(self) -> str:
        """
        Return the name of the cluster that answers; empty when it does not say.
        """
        found = self._get("overview", query="columns=cluster_name") or {}
        return str(found.get("cluster_name", ""))

    # -- requests ---------------------------------------------------------------------------------

    def _get_list(self, *path: str, query: str = "") -> list[dict[str, Any]]:
        found = self._get(*path, query=query)
        if found is None:
            raise TopologyError(f"the management API at {self.url} knows no {'/'.join(path)}")
        return [dict(row) for row in found]

    def _get(self, *path: str, query: str = "", patience_s: float = STARTING_S) -> Any:
        """
        Return what the API answers; None when there is no such thing.
        """
        body = self._request("GET", path, query, patience_s)
        if body is None:
            return None
        try:
            return json.loads(body)
        except ValueError:
            raise ConfigError(
                f"{self.url} is no management API of RabbitMQ: it does not answer in JSON"
            ) from None

    def _request(
        self, method: str, path: Sequence[str], query: str = "", patience_s: float = STARTING_S
    ) -> bytes | None:
        failures: list[str] = []
        tail = "/".join(quote(part, safe="") for part in path)
        for place in self._places:
            request = Request(  # noqa: S310 _place() lets only http and https pass
                f"{place.base}/api/{tail}" + (f"?{query}" if query else ""),
                method=method,
                headers={"Authorization": place.authorization},
            )
            try:
                return self._ask(place, request, patience_s)
            except (OSError, HTTPException) as error:
                # urllib wraps what the network said, and words it worse.
                reason = error.reason if type(error) is URLError else error
                failures.append(f"{place.base}: {reason}")
        raise BrokerUnavailableError(f"the management API cannot be reached ({'; '.join(failures)})")

    def _ask(self, place: _Place, request: Request, patience_s: float) -> bytes | None:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                with place.opener.open(request, timeout=self._timeout_s) as answer:
                    body: bytes = answer.read()
                    return body
            except HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                    if error.code in (401, 403):
                        raise _refused(place, error) from None
                    if error.code < 500 or time.monotonic() > deadline:
                        raise
            time.sleep(0.2)


class _NoRedirect(HTTPRedirectHandler):
    """
    Follow no redirect: it would take the password elsewhere.
    """

    def redirect_request(self, *_: Any) -> None:
        """
        Let it be an error.
        """


def _samples(found: Any, *path: str) -> list[int]:
    for name in (*path, "samples"):
        found = found.get(name) if isinstance(found, dict) else None
    rows = found if isinstance(found, list) else []
    return [row["sample"] for row in rows if isinstance(row, dict) and isinstance(row.get("sample"), int)]


def _refused(place: _Place, error: HTTPError) -> ConfigError:
    try:
        reason = json.loads(error.read())["reason"]
    except (ValueError, KeyError, TypeError, OSError):
        reason = error.reason
    return ConfigError(
        f"the management API at {place.base} refused: {reason}; the user needs the tag 'monitoring' "
        "(rabbitmqctl set_user_tags USER monitoring)"
    )


def _beside(parameters: Any) -> str:
    """
    Return where the management API of an AMQP host usually is.
    """
    host = f"[{parameters.host}]" if ":" in parameters.host else parameters.host
    return f"https://{host}:15671" if parameters.ssl_options else f"http://{host}:15672"


def _place(url: str, parameters: Any) -> _Place:
    """
    Take a URL apart; pika's *parameters* lend it what it does not say.
    """
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{mask_url(url)}: not a management URL; write http://user:password@host:15672")
    credentials = parameters.credentials
    user = credentials.username if parts.username is None else unquote(parts.username)
    password = credentials.password if parts.username is None else unquote(parts.password or "")
    token = b64encode(f"{user}:{password}".encode()).decode()
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    context = parameters.ssl_options.context if parameters.ssl_options else None
    return _Place(
        f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}",
        f"Basic {token}",
        # No proxy either: the broker is as near as for AMQP.
        build_opener(ProxyHandler({}), HTTPSHandler(context=context), _NoRedirect()),
    )
