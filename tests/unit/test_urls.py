"""URL lists come apart in the right places, and no secret is ever shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.urls import mask_url, readable_on_the_way, split_urls


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
    assert "S3CRET" not in mask_url(f"{scheme}://{user}:{noise}S3CRET@host/v")
