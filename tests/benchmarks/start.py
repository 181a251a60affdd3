"""
Measure how a shim starts that has much to remember: 100,000 publishers, or as many message ids.

::

    python -m tests.benchmarks.start [--count 100000] [--rounds 5] [--json]

Starting is what a session does between taking the fence and its first delivery: it claims the state from a real Redis, recovers,
and writes the state back. Each round is a process of its own, and so is each kind of state. Memory is what the process has more
than before, at its highest and when it has started; processor seconds of shim and Redis, which wait for each other, are told
beside seconds of the clock, for a machine that does other things too. The aim for 100,000 publishers: two seconds and 100 MB.

A save is then timed with all of that known and with next to nothing: what it costs must depend on the batch alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dedup.core import steps
from dedup.core.message_ids import message_key
from dedup.core.publishers import Changes, Entry, Publishers, forwarded
from dedup.core.records import Batch, Marker, MarkerKind, State
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings
from dedup.core.window import Window
from dedup.store.redis import RedisStore
from dedup.testing.servers import Redis

_PAGE_BYTES = resource.getpagesize()
#: Where the numbers of a publisher begin that was started in 2026; each has sent a thousand messages.
_BASE = 80_000_000 << 32
_SAVES = 50
_BATCH = 500


def known_publishers(count: int) -> dict[str, Entry]:
    """Return *count* publishers that never skipped."""
    return {
        f"orders-service-{n:06d}": Entry(Window(_BASE + 1000, _BASE + 1), time.time()) for n in range(count)
    }


def message_ids(count: int) -> dict[str, Entry]:
    """Return *count* message ids, as long as UUIDs are."""
    now_s = time.time()
    return {message_key(str(uuid.uuid4()).encode()): forwarded(now_s, 1 + n // _BATCH) for n in range(count)}


KINDS: dict[str, Callable[[int], dict[str, Entry]]] = {
    "publishers": known_publishers,
    "message ids": message_ids,
}


def memory_mb() -> float:
    """Return what this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6


def open_store(url: str) -> RedisStore:
    """Return the store of the queue in question."""
    return RedisStore(url, vhost="/", queue="orders", timeout_s=60)


def cpu_s(store: RedisStore) -> float:
    """Return how long Redis has worked."""
    told = store._client.redis.info("cpu")
    return float(told["used_cpu_user"] + told["used_cpu_sys"])


def fill(url: str, kind: str, count: int) -> None:
    """Put *count* of a kind into Redis."""
    store = open_store(url)
    token = store.claim(1).token
    store.replace(token, State(1, token, KINDS[kind](count)))


def start(url: str, _: str, count: int) -> dict[str, float]:
    """Start once, as a session does, and tell what that took."""
    settings = RelaySettings(publishers_max=2 * count, message_ids_max=2 * count)
    store, relay, now_s = open_store(url), Relay(settings), time.time()
    store.check()
    before_mb, redis_cpu_s = memory_mb(), cpu_s(store)
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    (claim,) = relay.handle(steps.Started(), now_s)
    assert isinstance(claim, steps.ClaimState)
    claimed = store.claim(claim.token_min)
    relay.handle(steps.Claimed(claimed.token, claimed.state, claimed.restarted), now_s)
    del claimed
    first = Marker(MarkerKind.FIRST, Batch(relay.token, 1))
    relay.handle(steps.Anchored(), now_s)
    relay.handle(steps.MarkerArrived(1, first), now_s)
    for effect in relay.handle(steps.Surveyed(None), now_s):
        if isinstance(effect, steps.Replace):
            store.replace(effect.token, effect.state)
    took = {"s": time.perf_counter() - begun_s, "cpu s": time.process_time() - begun_cpu_s}
    took["cpu s of Redis"] = cpu_s(store) - redis_cpu_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 - before_mb
    known = len(relay.judge.publishers.entries())
    assert known == count, f"{known} are known"
    return took | {"peak MB": peak_mb, "kept MB": memory_mb() - before_mb}


def save(url: str, kind: str, count: int) -> dict[str, float]:
    """Save batches whose messages are all of different publishers, or ids, and tell what one takes, in processor time."""
    store = open_store(url)
    token = store.claim(1).token
    store.replace(token, State(1, token, KINDS[kind](count)))
    batches = [Changes(KINDS[kind](_BATCH)) for _ in range(_SAVES)]
    begun_s = cpu_s(store) + time.process_time()
    for number, changes in enumerate(batches, start=2):
        assert store.save(steps.Save(token, number, changes, None)), "Redis is behind"
    return {"save ms": (cpu_s(store) + time.process_time() - begun_s) / _SAVES * 1000}


def held(_: str, kind: str, count: int) -> dict[str, float]:
    """Tell what one takes in the memory of a shim that has met all of them in batches."""
    names = list(KINDS[kind](count))
    publishers = Publishers(publishers_max=count, message_ids_max=count)
    tracemalloc.start()
    for first in range(0, count, _BATCH):
        for name in names[first : first + _BATCH]:
            # A name that comes from the socket is nobody else's.
            publishers.judge((name + " ")[:-1], _BASE + 1 if kind == "publishers" else 1, 0.0)
        publishers.settle(time.time(), 1 + first // _BATCH)
    return {"bytes in the shim": tracemalloc.get_traced_memory()[0] / count}


def in_a_process(what: str, *arguments: object) -> Any:
    """Do one thing in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.start", "--only", what, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def bytes_in_redis(url: str) -> int:
    """Return what the state takes in Redis."""
    store = open_store(url)
    return int(store._client.redis.memory_usage(store.key, samples=0) or 0)


def main() -> None:
    """
    Run the rounds and print what a start takes.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0].strip())
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs=4, help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.only:
        what, url, kind, count = options.only
        print(
            json.dumps(
                {"fill": fill, "start": start, "save": save, "held": held}[what](url, kind, int(count))
            )
        )
        return
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        with Redis() as redis:
            in_a_process("fill", redis.url, kind, options.count)
            in_redis = bytes_in_redis(redis.url) / options.count
            rounds: list[dict[str, float]] = []
            for number in range(options.rounds):
                rounds.append(in_a_process("start", redis.url, kind, options.count))
                saves = [in_a_process("save", redis.url, kind, n)["save ms"] for n in (_BATCH, options.count)]
                rounds[-1] |= {"save ms": saves[1], "of a save that knows one batch": saves[1] / saves[0]}
                in_a_process("fill", redis.url, kind, options.count)
                print(f"round {number + 1}: {kind} {rounds[-1]}", file=sys.stderr, flush=True)
        found[kind] = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
        found[kind] |= in_a_process("held", "", kind, options.count) | {"bytes in Redis": in_redis}
    if options.json:
        print(json.dumps(found))
        return
    for kind, values in found.items():
        print(
            f"{options.count:,} {kind}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        )


if __name__ == "__main__":
    main()
