"""
Visit every state of worlds larger than those of the tests: ``python -m tests.simulation.explore``.

A million distinct states and more, of the relay, of the sender, of both with the broker between them, of retriers and of
outboxes; a state that breaks the promise ends the visit to its world with the shortest story that leads there. A world is
visited whole: one that has more states than can be held is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any

from tests.simulation import outbox_worlds, retry_worlds
from tests.simulation.exploring import Explored, Rules, explore
from tests.simulation.relay_world import Explorer
from tests.simulation.sender_rules import Scenario, faults
from tests.simulation.sender_states import Senders
from tests.simulation.whole_world import WINDOW_SIZE, WholeExplorer

#: From one state in so many, everything must come to rest where it belongs.
REST_EVERY = 50


def _relay(**settings: Any) -> Callable[[], Rules[Any]]:
    return partial(Explorer, **settings)


def _sender(messages: int, **settings: Any) -> Callable[[], Rules[Any]]:
    return partial(Senders, Scenario(messages=messages, **settings))


def _whole(publishing: Scenario, **settings: Any) -> Callable[[], Rules[Any]]:
    return partial(WholeExplorer, publishing, **settings)


def _publishing(messages: int, **counts: int) -> Scenario:
    return Scenario(messages=messages, faults=faults(**counts), unconfirmed_max=2, window_size=WINDOW_SIZE)


WORLDS: dict[str, Callable[[], Rules[Any]]] = {
    # the largest first, so that two processes end together
    "whole: the publisher, the shim and the broker killed": _whole(
        _publishing(1, kill=1, lie=1), kills=1, broker_restarts=1, batch_max=1, prefetch=2
    ),
    "whole: a paused shim wakes up while Redis loses writes": _whole(
        _publishing(2, cut=1), kills=1, lost_fences=1, redis_regressions=1, batch_max=1, prefetch=1
    ),
    "whole: two publishers, cut and nacked": _whole(
        _publishing(1, lie=1), publishers=2, kills=1, batch_max=2, prefetch=2
    ),
    "whole: nacks in the middle, contradicted acks": _whole(
        _publishing(3, nack=2, contradict=1), kills=1, batch_max=2, prefetch=2
    ),
    "whole: a silent broker, a killed publisher": _whole(
        _publishing(2, swallow=1, silence=1, kill=1), kills=2, batch_max=1, prefetch=2
    ),
    "whole: Redis is emptied": _whole(
        _publishing(2, lie=1, cut=1), kills=1, redis_emptied=1, batch_max=1, prefetch=1
    ),
    "whole: a later owner of the id": _whole(
        _publishing(2, forget=1, cut=1), kills=1, batch_max=2, prefetch=2
    ),
    "whole, confirmed: a cut and a kill": _whole(
        _publishing(2, cut=1, nack=1), exact=False, kills=1, refusals=1, batch_max=1, prefetch=2
    ),
    "relay: a stop, a kill, an answer lost": _relay(stops=1, kills=1, lost_replies=1, prefetch=2),
    "relay: two relays and a Redis that forgets": _relay(
        copies=1, kills=1, lost_fences=1, redis_regressions=1, lost_writes=2, batch_max=1, prefetch=1
    ),
    "relay: the broker restarts while a Redis forgets": _relay(
        messages=1, kills=1, broker_restarts=1, redis_regressions=1, redis_emptied=1, batch_max=1
    ),
    "relay: killed twice, a commit is partial": _relay(copies=1, kills=2, partial_commits=1),
    "relay: Redis is emptied and the broker restarts": _relay(
        kills=1, redis_emptied=1, broker_restarts=1, batch_max=1, prefetch=1
    ),
    "relay, confirmed: killed twice": _relay(exact=False, kills=2, batch_max=1, prefetch=2),
    "relay, surveyed: retries, a kill and another leader": _relay(
        exact=False, surveyed=True, kills=1, elections=1, prefetch=2
    ),
    "relay, surveyed: killed twice, another leader": _relay(
        exact=False, surveyed=True, copies=1, kills=2, elections=1, batch_max=1, prefetch=2
    ),
    "relay, surveyed: killed twice, and a Redis that forgets": _relay(
        exact=False,
        surveyed=True,
        copies=1,
        kills=2,
        redis_regressions=1,
        lost_writes=2,
        batch_max=1,
        prefetch=2,
    ),
    "sender: four messages, two cuts, a nack": _sender(4, faults=faults(cut=2, nack=1)),
    "sender: killed, cut and contradicted": _sender(
        3, faults=faults(kill=1, cut=1, nack=1, contradict=1, lie=1)
    ),
    "sender: bad and unroutable messages, retries": _sender(
        3,
        bad=frozenset({2}),
        unroutable=frozenset({3}),
        hasty=frozenset({1}),
        retries=2,
        faults=faults(cut=1, nack=1),
    ),
    **{f"retry: {name}": rules for name, rules in retry_worlds.ALL.items()},
    **{f"outbox: {name}": rules for name, rules in outbox_worlds.ALL.items()},
}


def visit(name: str) -> Explored:
    """
    Visit every state of the world *name*.
    """
    return explore(
        WORLDS[name](),
        rest_every=REST_EVERY,
        report=lambda so_far: print(_line(name, so_far, "..."), file=sys.stderr, flush=True),
    )


def _line(name: str, explored: Explored, end: str) -> str:
    rate = explored.states / explored.seconds
    return f"{name}: {explored.states:,} states, {rate:,.0f}/s, {explored.depth} steps deep{end}"


def main(arguments: list[str] | None = None) -> int:
    """
    Run from the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.explore", description=__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--world", default="", help="only worlds with this in their name")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, progress on stderr")
    given = parser.parse_args(arguments)
    names = [name for name in WORLDS if given.world in name]
    if not names:
        parser.error(f"no world has {given.world!r} in its name; there are: {', '.join(WORLDS)}")
    out = sys.stderr if given.json else sys.stdout
    found: dict[str, Explored] = {}
    with ProcessPoolExecutor(given.processes) as pool:
        running = {pool.submit(visit, name): name for name in names}
        for future in as_completed(running):
            name = running[future]
            found[name] = explored = future.result()
            print(
                _line(name, explored, f": {explored}" if explored.reason else ", all right"),
                file=out,
                flush=True,
            )
    total = sum(explored.states for explored in found.values())
    wrong = [name for name, explored in found.items() if explored.reason]
    print(f"{total:,} distinct states in {len(found)} worlds, {len(wrong)} of them wrong", file=out)
    if given.json:
        worlds = {
            name: {
                "states": explored.states,
                "depth": explored.depth,
                "seconds": round(explored.seconds, 1),
                "reason": explored.reason,
                "story": explored.story,
            }
            for name, explored in found.items()
        }
        print(json.dumps({"states": total, "worlds": worlds}, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
