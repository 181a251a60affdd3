"""The tables of what RabbitMQ translates between its protocols, held against the one at hand."""

from __future__ import annotations

import pytest

from dedup.testing.servers import RabbitMQ, Redis
from tests.proton.conformance import KINDS, PAGE, Bench, combined, look, page_cells, shown
from tests.proton.conversions import ROWS

#: What a user of both protocols should know of first; what the broker fails over is in test_unreadable.py.
_IMPORTANT = (
    "`user_id`",
    "header, list",
    "header, bytes",
    "`subject`",
    "`group-sequence`",
    "`creation-time`",
    "application property, ulong above 2^63",
    "body, amqp-value string",
)


def _compare(broker: RabbitMQ, redis: Redis, kind: str, only: tuple[str, ...] | None) -> None:
    version = ".".join(broker.version.split(".")[:2])
    cells = page_cells(PAGE.read_text("utf-8"))
    seen = look(Bench(broker, redis), kind, only)
    assert seen == {place: shown(cells[place], version, kind) for place in seen}


def test_what_matters_most_is_as_the_page_says(broker: RabbitMQ, redis_server: Redis) -> None:
    """Of classic queues, directly and behind both shims."""
    _compare(broker, redis_server, "classic", _IMPORTANT)


@pytest.mark.long
@pytest.mark.each_version
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_as_the_page_says(broker: RabbitMQ, redis_server: Redis, kind: str) -> None:
    """Every property and type, in queues of every type."""
    _compare(broker, redis_server, kind, None)


def test_the_page_has_every_row_and_no_other() -> None:
    """In the order of the script that wrote it."""
    names = [(writer, name) for writer, name, way, reader in page_cells(PAGE.read_text("utf-8")) if not way]
    rows = [(writer, row.name) for writer, rows in ROWS.items() for row in rows[1:]]
    assert list(dict.fromkeys(names)) == rows


def test_a_cell_names_what_is_different_and_where() -> None:
    """The most frequent first; a version or a type of queue by one name where it is the same all over it."""
    places = [(version, kind) for version in ("4.0", "4.3") for kind in KINDS]
    for odd in (
        {("4.0", "stream"): "x"},
        {("4.0", "stream"): "x", ("4.3", "stream"): "x"},
        {("4.0", "classic"): "y", ("4.0", "quorum"): "y", ("4.0", "stream"): "y", ("4.3", "stream"): "x"},
    ):
        seen = {place: odd.get(place, "same") for place in places}
        cell = combined(seen)
        assert {place: shown(cell, *place) for place in places} == seen
    assert combined({**dict.fromkeys(places, "same"), ("4.0", "stream"): "x"}) == "same; 4.0 stream: x"
    assert combined({place: "x" if place[1] == "stream" else "same" for place in places}) == "same; stream: x"
