"""The webhook: news arrives, failures are tried again, and nobody ever waits for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dedup.deadletters.webhook import Webhook
from dedup.errors import ConfigError
from tests.looking import PATIENCE_S, until

SECRET = "s3cret"


class Site:
    """A server that answers with what it is told, the last answer again and again."""

    def __init__(self, *answers: int) -> None:
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.answers = list(answers)
        self.gate = threading.Event()
        self.gate.set()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                site.requests.append((self.path, headers, json.loads(body)))
                site.gate.wait(PATIENCE_S)
                answer = site.answers.pop(0) if len(site.answers) > 1 else site.answers[0]
                self.send_response(answer)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    @property
    def url(self) -> str:
        """Where it is, with secrets in every part."""
        return f"http://user:{SECRET}@127.0.0.1:{self.server.server_port}/{SECRET}?token={SECRET}"

    def close(self) -> None:
        """End it."""
        self.gate.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@contextmanager
def sending(url: str, **options: Any) -> Iterator[tuple[Webhook, list[dict[str, Any]]]]:
    """A webhook, and what it gives up; no word of it has the secret."""
    failed: list[dict[str, Any]] = []

    def notice(name: str, facts: dict[str, Any]) -> None:
        assert name == "dedup.webhook_failed"
        assert SECRET not in str(facts)
        failed.append(facts)

    webhook = Webhook(url, notice=notice, **{"pause_s_first": 0.001, **options})
    try:
        yield webhook, failed
    finally:
        webhook.close(PATIENCE_S)


def test_news_arrives_in_order() -> None:
    """As JSON, with the login of the URL in a header and its path as it is."""
    with closing(Site(200)) as site:
        with sending(site.url) as (webhook, failed):
            for number in range(5):
                webhook.send({"queue": "orders", "number": number})
        assert [body["number"] for _, _, body in site.requests] == list(range(5))
        path, headers, _ = site.requests[0]
        assert path == f"/{SECRET}?token={SECRET}"
        assert headers["authorization"].startswith("Basic ")
        assert headers["content-type"] == "application/json"
        assert not failed


@pytest.mark.parametrize("passing", [500, 503, 429])
def test_what_may_pass_is_tried_again(passing: int) -> None:
    """A server that is not well gets the same news again until it is."""
    with closing(Site(passing, passing, 204)) as site, sending(site.url) as (webhook, failed):
        webhook.send({"queue": "orders"})
        until(lambda: len(site.requests) == 3)
    assert not failed


@pytest.mark.parametrize("final", [301, 400, 404])
def test_what_will_not_pass_is_given_up(final: int) -> None:
    """Once, and nobody is led elsewhere."""
    with closing(Site(final)) as site:
        with sending(site.url) as (webhook, failed):
            webhook.send({"queue": "orders", "message_id": "m"})
            until(lambda: failed)
        assert len(site.requests) == 1
        assert failed == [
            {
                "queue": "orders",
                "message_id": "m",
                "webhook": f"http://127.0.0.1:{site.server.server_port}",
                "reason": f"HTTP status {final}",
            }
        ]


def test_tries_end() -> None:
    """News for a server that never gets well is given up, and the next is tried."""
    with closing(Site(500)) as site:
        with sending(site.url, attempts_max=3) as (webhook, failed):
            webhook.send({"queue": "one"})
            webhook.send({"queue": "two"})
            until(lambda: len(failed) == 2)
        assert [body["queue"] for _, _, body in site.requests] == ["one"] * 3 + ["two"] * 3


def test_nobody_waits_for_a_site_that_hangs() -> None:
    """What is over the limit is given up at once, and told; the rest arrives when the site answers."""
    with closing(Site(200)) as site:
        site.gate.clear()
        with sending(site.url, waiting_max=2) as (webhook, failed):
            webhook.send({"queue": "first"})
            until(lambda: site.requests)
            for number in range(5):
                webhook.send({"queue": str(number)})
            assert [facts["queue"] for facts in failed] == ["2", "3", "4"]
            assert failed[0]["reason"] == "2 wait already"
            site.gate.set()
        assert [body["queue"] for _, _, body in site.requests] == ["first", "0", "1"]


def test_a_site_that_is_not_there() -> None:
    """Tried and given up, without the URL in any word of it; closing tries what waits once more."""
    site = Site(200)
    site.close()
    with sending(site.url, attempts_max=1000, pause_s_first=60) as (webhook, failed):
        webhook.send({"queue": "one"})
        webhook.send({"queue": "two"})
        webhook.close(PATIENCE_S)
        assert [facts["queue"] for facts in failed] == ["one", "two"]
        assert all(facts["reason"].endswith("Error") for facts in failed)


@pytest.mark.parametrize("url", ["", "hooks.example.org", "ftp://x/y", "http://", "http://x:y:z/", f"http://[/{SECRET}"])  # fmt: skip
def test_a_url_that_cannot_be(url: str) -> None:
    """It is refused without being repeated."""
    with pytest.raises(ConfigError, match="not a URL") as caught:
        Webhook(url, notice=lambda *_: None)
    assert SECRET not in str(caught.value)
