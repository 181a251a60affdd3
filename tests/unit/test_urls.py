"""URL lists come apart in the right places, and no secret is ever shown."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.urls import mask_url, readable_on_the_way, split_urls
from dedup.service.logs import mask_text

#: No part of a generated URL beside the secret has letters like these.
_SECRET = "S3CRET"
#: Pieces that, many times over, keep a reader of URLs busy with what it has read already.
_HOSTILE = {
    "letters": "a",
    "spaces": " ",
    "commas": " , ",
    "schemes": "a://",
    "lists": ",a://b",
    "users": "amqp://u:",
    "ends": "@",
    "questions": "?",
    "names": "?pass",
    "parameters": "&token=?",
    "fragments": "#secret",
}


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        ("amqp://a", ["amqp://a"]),
        (" amqp://a , amqps://b/v,", ["amqp://a", "amqps://b/v"]),
        (["amqp://a", "amqp://b,amqp://c"], ["amqp://a", "amqp://b", "amqp://c"]),
        (
            "amqps://a/?ssl_options={'a': 1, 'b': 2},amqp://b",
            ["amqps://a/?ssl_options={'a': 1, 'b': 2}", "amqp://b"],
        ),
        ("amqp://u:p,q@a", ["amqp://u:p,q@a"]),
        ("", []),
        ([], []),
    ],
)
def test_splits_at_commas_between_urls_only(urls: str | list[str], expected: list[str]) -> None:
    """A comma is also legal inside a URL."""
    assert split_urls(urls) == expected


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "amqp://guest:hidden@localhost:5672/%2F?heartbeat=5",
            "amqp://guest:***@localhost:5672/%2F?heartbeat=5",
        ),
        ("redis://:hidden@localhost:6379/0", "redis://:***@localhost:6379/0"),
        ("amqp://u:hidden@[::1]:5672/", "amqp://u:***@[::1]:5672/"),
        ("amqp://u:hidden%40@h/v@w", "amqp://u:***@w"),
        ("amqp://u:hid@den@h/v", "amqp://u:***@h/v"),
        ("amqp://u:hid/den@h/v", "amqp://u:***@h/v"),
        ("amqp://u:hid#den@h/v", "amqp://u:***@h/v"),
        ("amqp://u:hid?den@h/v", "amqp://u:***@h/v"),
        ("redis://h?password=hidden&db=1", "redis://h?password=***&db=1"),
        ("amqps://h/?ssl_options={'password': 'hidden'}", "amqps://h/?ssl_options=***"),
        ("amqp://a:hidden@b,amqp://c:hidden@d", "amqp://a:***@b, amqp://c:***@d"),
        ("amqp://localhost/v", "amqp://localhost/v"),
        ("amqp://user@localhost", "amqp://user@localhost"),
        ("amqp://us/er:hidden@h/v", "amqp://us/er:***@h/v"),
        ("guest:hidden@localhost:5672", "guest:***@localhost:5672"),
        ("redis://h?a=1?password=hidden?b", "redis://h?a=1?password=***"),
        ("redis://h?db=1&PASSWORD=hidden#x", "redis://h?db=1&PASSWORD=***#x"),
        ("http://h/?pass", "http://h/?pass"),
        ("nonsense", "nonsense"),
        ("", ""),
    ],
)
def test_shows_everything_but_the_secret(url: str, shown: str) -> None:
    """Whoever reads a log sees where, as whom, and never the password."""
    assert mask_url(url) == shown


@pytest.mark.parametrize(
    ("urls", "readable"),
    [
        ("amqp://localhost", []),
        ("amqp://u:hidden@127.0.0.1:1/v,amqp://[::1]:5672", []),
        ("redis://127.8.9.1", []),
        ("amqp:///v", []),
        ("http://broker.localhost:15672", []),
        ("amqps://far,rediss://far,https://far", []),
        ("unix:///run/redis.sock", []),
        ("amqp://u:hidden@far:1/v", ["amqp://u:***@far:1/v"]),
        ("amqp://localhost,amqp://far", ["amqp://far"]),
        ("redis://10.0.0.1,http://far", ["redis://10.0.0.1", "http://far"]),
        ("AMQP://localhost.far", ["AMQP://localhost.far"]),
        ("redis://[fe80::1]", ["redis://[fe80::1]"]),
        ("amqp://[far", []),
        ("", []),
    ],
)
def test_knows_what_can_be_read_on_the_way(urls: str, readable: list[str]) -> None:
    """Only what leaves this machine without TLS."""
    assert readable_on_the_way(urls) == readable


@given(
    st.text("0:@/?#,%= \n\u00e9", max_size=20),
    st.sampled_from(["amqp", "rediss"]),
    st.text("ab", max_size=3),
)
def test_no_password_survives(noise: str, scheme: str, user: str) -> None:
    """Whatever it is made of and whether or not the URL is valid with it."""
    assert _SECRET not in mask_url(f"{scheme}://{user}:{noise}{_SECRET}@host/v")


#: Anything but a comma before another scheme, which ends a URL.
_TEXT = st.text(max_size=20).filter(lambda text: "://" not in text and _SECRET not in text)
_WORD = st.text("ab.-", max_size=4)


@given(_WORD, _TEXT, _TEXT, _TEXT, st.sampled_from(["", "?a=b@c", "/v@w", "/%2F?x=1&y=:@"]))
def test_no_password_of_a_url_survives(user: str, before: str, after: str, word: str, rest: str) -> None:
    """In its user part as it is or percent-encoded, or in a parameter; alone, in a list, and in a log's text."""
    password = f"{before}{_SECRET}{after}"
    encoded = quote(password, safe="")
    host = f"{user}host:5672"
    for url in (
        f"amqp://{user}:{encoded}@{host}{rest}",
        f"amqp://{quote(word, safe='')}:{encoded}@{host}{rest}",
        f"redis://{host}/0?db=1&Password={encoded}",
        f"amqps://{host}/?ssl_options={{'password': '{encoded}'}}".replace(" ", ""),
    ):
        assert _SECRET not in mask_url(url)
        assert _SECRET not in mask_url(f"amqp://a:b@c,{url} , redis://:x@y")
        assert _SECRET not in mask_text(f"cannot reach {url}, as it seems: {url}")
    assert _SECRET not in mask_url(f"amqp://{user}:{password}@{host}{rest}")
    assert _SECRET not in mask_url(f"amqp://{word}:{password}@{host}{rest}")


@pytest.mark.parametrize("act", [mask_url, mask_text])
@pytest.mark.parametrize("begin", ["", "amqp://u:", "amqp://h?"])
@pytest.mark.parametrize("piece", _HOSTILE.values(), ids=_HOSTILE.keys())
def test_a_hostile_text_takes_time_in_proportion_to_its_length(
    act: Callable[[str], object], begin: str, piece: str
) -> None:
    """Four times the text takes about four times as long; where each character is looked at from each other one, 16 times."""

    def seconds(count: int) -> float:
        text, spent = begin + piece * count, []
        for _ in range(7):
            started = time.thread_time()
            act(text)
            spent.append(time.thread_time() - started)
        return statistics.median(spent)

    assert seconds(2000) < 10 * seconds(500)
