"""What somebody with the right to publish, or to write where only dedup should, can use up; and what stays as it was."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections import deque
from collections.abc import Iterator

import pytest

from dedup.core.identity import SEQUENCE_MAX
from dedup.core.judge import Judge
from dedup.core.records import NUMBER_MAX, SEQUENCES_MAX, State, decode_marker
from dedup.core.settings import RelaySettings
from dedup.core.steps import Arrival
from dedup.core.window import WINDOW_SIZE, Verdict, Window, judge
from dedup.errors import StateFormatError
from dedup.store.redis import RedisStore
from dedup.testing.servers import Redis

PUBLISHERS_MAX = 200


def _judge() -> Judge:
    settings = RelaySettings(publishers_max=PUBLISHERS_MAX, batch_max=500)
    return Judge(settings, State(), 0.0, suspect=False)


def _settle(judge: Judge, arrivals: Iterator[Arrival], now_s: float = 1.0) -> dict[Verdict, int]:
    """Let *arrivals* through in batches, and count the verdicts."""
    counted: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
    waiting = deque(arrivals)
    while waiting:
        batch = judge.take(waiting, now_s)
        for verdict, count in batch.verdicts.items():
            counted[verdict] += count
        batch.remaining = ()
        judge.settle(batch, now_s)
    return counted


def _invented(first: int, count: int) -> Iterator[Arrival]:
    return (Arrival(number + 1, False, f"invented-{number}", 1) for number in range(first, first + count))


def test_invented_publishers_fill_the_map_and_no_more() -> None:
    """Memory stays flat over 20,000 ids; those known before go on, the rest is quarantined, never forwarded unseen."""
    judge = _judge()
    known = _settle(judge, (Arrival(n, False, "honest", n) for n in range(1, 100)))
    assert known[Verdict.NEW] == 99
    _settle(judge, _invented(0, 5_000))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        flood = _settle(judge, _invented(10_000, 20_000))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(judge.publishers) == PUBLISHERS_MAX
    assert flood[Verdict.UNADMITTED] == 20_000
    assert grown < 200_000, grown
    after = _settle(judge, iter([Arrival(1, False, "honest", 100), Arrival(2, False, "honest", 100)]))
    assert (after[Verdict.NEW], after[Verdict.DUPLICATE]) == (1, 1)


def test_room_comes_back_with_silence() -> None:
    """Ids that are not used any more make room after publisher_idle_s; one that is in use keeps its place."""
    judge = _judge()
    _settle(judge, _invented(0, 1000))
    _settle(judge, iter([Arrival(1, False, "invented-7", 2)]), now_s=90_000.0)
    late = _settle(
        judge, (Arrival(n + 1, False, f"late-{n}", 1) for n in range(PUBLISHERS_MAX)), now_s=90_001.0
    )
    assert (late[Verdict.NEW], late[Verdict.UNADMITTED]) == (PUBLISHERS_MAX - 1, 1)
    again = _settle(judge, iter([Arrival(1, False, "invented-7", 2)]), now_s=90_002.0)
    assert again[Verdict.DUPLICATE] == 1


def test_jumps_leave_the_window_bounded() -> None:
    """However sequences jump, a window has at most its size in bits, and each verdict is one of three."""
    rng = random.Random(5)
    for size in (16, WINDOW_SIZE):
        window: Window | None = None
        for _ in range(3_000):
            last = window.last if window else 1
            sequence = rng.choice(
                (1, SEQUENCE_MAX, rng.randrange(1, SEQUENCE_MAX), last + rng.randrange(-2 * size, 2 * size))
            )
            _, window = judge(window, min(max(1, sequence), SEQUENCE_MAX), size)
            assert window.missing.bit_length() < size
            assert 1 <= window.start <= window.last <= SEQUENCE_MAX


def test_a_jump_to_the_end_costs_that_publisher_only() -> None:
    """After 2^63 - 1 its own lower numbers are quarantined, none is dropped or doubled; others do not notice."""
    judge = _judge()
    arrivals = [
        Arrival(1, False, "jumper", 5),
        Arrival(2, False, "jumper", SEQUENCE_MAX),
        Arrival(3, False, "jumper", SEQUENCE_MAX),
        Arrival(4, False, "jumper", 6),
        Arrival(5, False, "jumper", 5),
        Arrival(6, False, "other", 5),
        Arrival(7, False, "other", 6),
    ]
    counted = _settle(judge, iter(arrivals))
    assert (counted[Verdict.NEW], counted[Verdict.DUPLICATE], counted[Verdict.TOO_OLD]) == (4, 1, 2)


# -- forged control messages ----------------------------------------------------------------------


def _marker(**fields: object) -> bytes:
    return json.dumps(
        {"kind": "batch", "token": 1, "batch": 1, "exact": True, "sequences": {}, **fields}
    ).encode()


def test_a_marker_of_ours_is_read() -> None:
    """The control: what the forged ones below differ from."""
    assert decode_marker(_marker(sequences={"p": [[1, 3]]})) is not None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{" * 100_000,
        b"[" * 1_000_000,
        b'{"kind":"batch","token":' + b"9" * 100_000 + b"}",
        b"\xff\xfe",
        _marker(kind="other"),
        _marker(kind=["batch"]),
        _marker(token=-1),
        _marker(token=1.5),
        _marker(token="1"),
        _marker(token=NUMBER_MAX + 1),
        _marker(token=10**400),
        _marker(batch=NUMBER_MAX + 1),
        _marker(batch=None),
        _marker(sequences=[]),
        _marker(sequences={"p": [[1, SEQUENCE_MAX]]}),
        _marker(sequences={"p": [[1, SEQUENCES_MAX + 1]]}),
        _marker(sequences={f"p{n}": [[1, SEQUENCES_MAX // 10]] for n in range(11)}),
        _marker(sequences={"p": [[3, 1]]}),
        _marker(sequences={"p": [[0, 1]]}),
        _marker(sequences={"p": [[1]]}),
        _marker(sequences={"p": 5}),
        _marker(sequences={"": [[1, 1]]}),
        _marker(sequences={"p" * 201: [[1, 1]]}),
        _marker(sequences={"\ud800": [[1, 1]]}),
        _marker(sequences={"a\nb": [[1, 1]]}),
    ],
    ids=range(28),
)
def test_a_forged_marker_that_cannot_be_one_proves_nothing(body: bytes) -> None:
    """It is nothing, neither an exception nor memory without bound."""
    tracemalloc.start()
    try:
        assert decode_marker(body) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000 + 20 * len(body)


def test_a_token_no_clock_gives_stops_the_shim_with_the_fix(redis_server: Redis, queue_name: str) -> None:
    """The highest token a forged marker can bring is the end of tokens: said, not waited for; nothing is forwarded."""
    store = RedisStore(redis_server.url, vhost="/", queue=queue_name)
    assert store.claim(NUMBER_MAX).token == NUMBER_MAX
    with pytest.raises(StateFormatError, match="purge the ledger"):
        store.claim(1)
    redis_server.cli("HSET", store.key, "token", "inf")
    with pytest.raises(StateFormatError, match="damaged"):
        store.claim(1)
    redis_server.cli("DEL", store.key)
    store.close()
