"""
Post obituaries to a URL from a thread of its own.

Whatever becomes of the URL, nobody waits for it: what is to be sent waits in a bounded line, is tried again with backoff, and
is given up with a word in the log. The messages themselves are safe in the queues of the dead; only the news is lost.
"""

from __future__ import annotations

import json
import queue
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import urllib3

from dedup.core.backoff import delay_s
from dedup.errors import ConfigError

#: News that may wait; at some hundred bytes each.
WAITING_MAX: Final = 1_000
#: Tries of one piece of news: with their pauses about two minutes.
ATTEMPTS_MAX: Final = 8
PAUSE_S_FIRST: Final = 0.5
PAUSE_S_MAX: Final = 60.0
#: To connect, and for each answer; seconds.
_TIMEOUT: Final = urllib3.Timeout(connect=5.0, read=10.0)
#: Too early, too many, or a server that is not well: another try may help.
_PASSING: Final = frozenset({408, 425, 429})

Notice = Callable[[str, dict[str, Any]], None]


class Webhook:
    """
    POST each piece of news as JSON, in order.

    Args:
        url: http:// or https://; user and password in it are sent as basic authentication. Its path and query are taken for
            secrets: nothing but scheme and host is ever told.
        notice: Told ``dedup.webhook_failed`` when news is given up; called in the thread, or in the one that sends.

    Raises:
        ConfigError: it is no such URL.
    """

    def __init__(
        self,
        url: str,
        *,
        notice: Notice,
        waiting_max: int = WAITING_MAX,
        attempts_max: int = ATTEMPTS_MAX,
        pause_s_first: float = PAUSE_S_FIRST,
    ) -> None:
        self._url, self._headers, self.shown = _taken_apart(url)
        self._notice = notice
        self._attempts_max = attempts_max
        self._pause_s_first = pause_s_first
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(waiting_max)
        self._hurry = threading.Event()
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, timeout=_TIMEOUT, retries=False)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, facts: dict[str, Any]) -> None:
        """
        Take one piece of news over; never blocks.
        """
        with self._starting:
            if self._thread is None:  # most processes never have any news
                self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait(facts)
        except queue.Full:
            self._give_up(facts, f"{self._waiting.maxsize} wait already")

    def close(self, timeout_s: float) -> None:
        """
        Try what waits once more each, for so long at the most; what is left then is given up.
        """
        self._hurry.set()
        with suppress(queue.Full):
            self._waiting.put(None, timeout=timeout_s)
            if self._thread is not None:
                self._thread.join(timeout_s)

    def _run(self) -> None:
        while (facts := self._waiting.get()) is not None:
            self._deliver(facts)
        self._pool.clear()

    def _deliver(self, facts: dict[str, Any]) -> None:
        reason = ""
        for attempt in range(self._attempts_max):
            reason, again = self._post(facts)
            if not reason:
                return
            if not again or self._hurry.is_set():
                break
            if attempt + 1 < self._attempts_max:
                pause_s = delay_s(attempt, random.random(), first_s=self._pause_s_first, max_s=PAUSE_S_MAX)
                self._hurry.wait(pause_s)
        self._give_up(facts, reason)

    def _post(self, facts: dict[str, Any]) -> tuple[str, bool]:
        """
        Return why it did not arrive, empty if it did, and whether that may pass.
        """
        try:
            answer = self._pool.request(
                "POST",
                self._url,
                body=json.dumps(facts).encode(),
                headers=self._headers,
                redirect=False,
                preload_content=False,  # what it answers does not matter, and may be endless
            )
            answer.close()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            # Its text has the whole URL in it.
            return type(error).__name__, True
        if 200 <= answer.status < 300:
            return "", False
        return f"HTTP status {answer.status}", answer.status in _PASSING or answer.status >= 500

    def _give_up(self, facts: dict[str, Any], reason: str) -> None:
        about = {name: facts.get(name) for name in ("queue", "message_id")}
        self._notice("dedup.webhook_failed", {**about, "webhook": self.shown, "reason": reason})


def _taken_apart(url: str) -> tuple[str, dict[str, str], str]:
    """
    Return the URL without a login, the headers with it, and what may be shown.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https"):
        raise ConfigError("the webhook is not a URL that begins with http:// or https://")
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    headers = {"Content-Type": "application/json", "User-Agent": "dedup"}
    if parts.username is not None:
        headers |= urllib3.make_headers(basic_auth=f"{parts.username}:{parts.password or ''}")
    bare = urlunsplit(parts._replace(netloc=place, fragment=""))
    return bare, headers, f"{parts.scheme}://{place}"
