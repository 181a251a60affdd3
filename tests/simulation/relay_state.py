"""One state of everything around a relay: a tuple of numbers, and what simple things turn it into."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable
from functools import lru_cache
from typing import NamedTuple


class Faults(NamedTuple):
    """
    How many faults of each kind may still happen.
    """

    kills: int = 0
    broker_restarts: int = 0
    redis_regressions: int = 0
    redis_emptied: int = 0
    lost_replies: int = 0
    refusals: int = 0
    #: Neither the target nor the quarantine has a queue for a moment.
    missing_queues: int = 0
    partial_commits: int = 0
    lost_fences: int = 0
    stops: int = 0
    elections: int = 0
    #: Of a move, whose source is in another broker.
    source_restarts: int = 0


class Redis(NamedTuple):
    """
    What the store holds.
    """

    token: int = 0
    revision: int = 0
    #: Number of the state; 0: none.
    state: int = 0
    #: The process that *state* was written to, and the one that runs.
    written_to: int = 0
    process: int = 0


#: The first delivery tag of a stray: no marker comes that far.
STRAY_TAG = 1_000


class Log(NamedTuple):
    """
    What the audit was told, each row once.
    """

    #: Token and the number of its last row.
    ends: tuple[tuple[int, int], ...] = ()
    #: Messages said to be forwarded without a mark; twice if it was said twice.
    forwarded: tuple[int, ...] = ()
    #: Messages said to be forwarded marked, or proven to be forwarded by a dead relay.
    excused: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    #: What it does not hold although a later row says that there was something.
    hole: str = ""


class Answers(NamedTuple):
    """
    What a publisher was told; see question_world.py.
    """

    #: Messages that were published before the first question.
    ahead: tuple[int, ...] = ()
    #: Messages that the queue is said to have had.
    claimed: tuple[int, ...] = ()
    #: What was wrong with an answer when it was given.
    wrong: str = ""


class World(NamedTuple):
    """
    One state of everything; messages are numbered from 0, everything large stands in the catalog.
    """

    #: How often each message was published.
    sent: tuple[int, ...]
    faults: Faults
    #: Message, and whether the broker flags it as redelivered.
    ingress: tuple[tuple[int, bool], ...] = ()
    #: Delivery tag and message.
    unacked: tuple[tuple[int, int], ...] = ()
    acked: tuple[int, ...] = ()
    #: Message, and whether it is marked; in no order.
    target: tuple[tuple[int, bool], ...] = ()
    quarantine: tuple[int, ...] = ()
    #: Delivery tag and number of the marker.
    ledger: tuple[tuple[int, int], ...] = ()
    #: Delivery tag and message of what found no queue and lies in the ledger too.
    strays: tuple[tuple[int, int], ...] = ()
    #: How many of them the relay was told of.
    strays_told: int = 0
    #: Persistent markers that were acknowledged, and strays.
    released: tuple[int, ...] = ()
    released_strays: tuple[int, ...] = ()
    redis: Redis = Redis()
    #: What it held before its newest writes, oldest first; kept only while it may be lost again.
    redis_before: tuple[Redis, ...] = ()
    #: Number of the relay; 0: it is dead.
    relay: int = 0
    #: Numbers of the effects it asked for and nobody performed yet.
    pending: tuple[int, ...] = ()
    #: Revision the relay expects Redis to have.
    revision: int = 0
    consuming: bool = False
    #: The relay waits after a refusal.
    pausing: bool = False
    next_tag: int = 1
    next_ledger_tag: int = 1
    next_stray_tag: int = STRAY_TAG
    #: Store writes of a relay that has lost its fence: (expected revision, effect).
    zombie: tuple[tuple[int, int], ...] = ()
    #: How often a relay was started: the clock of the tokens.
    starts: int = 0
    #: How often somebody came to lead the target.
    term: int = 1
    #: The term in which the relay's channel found the leader; 0: it has not looked.
    channel_term: int = 0
    #: In the target, as long as nobody else comes to lead it.
    uncommitted: tuple[tuple[int, bool], ...] = ()
    #: What the audit was told.
    log: Log = Log()
    #: What a publisher was told.
    answers: Answers = Answers()
    #: Of a move: what a dead session had in its hands, as long as the source does not know that it is dead.
    lingering: tuple[int, ...] = ()


def disconnected(world: World) -> World:
    """
    Return what was delivered and not acknowledged to the head of the ingress.
    """
    returned = tuple((m, True) for _, m in world.unacked)
    return world._replace(ingress=returned + world.ingress, unacked=(), consuming=False)


def strayed(world: World, messages: Iterable[int]) -> World:
    """
    Let *messages* end in the ledger: there is no other queue.
    """
    new = tuple(enumerate(messages, start=world.next_stray_tag))
    return world._replace(strays=world.strays + new, next_stray_tag=world.next_stray_tag + len(new))


def without_strays(world: World, release: Container[int]) -> World:
    """
    Acknowledge the strays whose delivery tags are in *release*.
    """
    gone = tuple(m for tag, m in world.strays if tag in release)
    return world._replace(
        strays=tuple(held for held in world.strays if held[0] not in release),
        strays_told=world.strays_told - len(gone),
        released_strays=world.released_strays + gone if world.faults.broker_restarts else (),
    )


def elected(world: World, lost: tuple[int, ...]) -> World:
    """
    Give the target another leader, which lacks some of the uncommitted messages.
    """
    target = list(world.target)
    for index in lost:
        target.remove(world.uncommitted[index])
    return world._replace(target=tuple(target), uncommitted=(), term=world.term + 1)


def killed(world: World) -> World:
    """
    End the relay: what it has sent stays, what it has not done yet is never done.
    """
    return disconnected(world)._replace(
        relay=0,
        channel_term=0,
        pending=(),
        pausing=False,
        revision=0,
        next_tag=1,
        next_ledger_tag=1,
        ledger=tuple((tag, number) for tag, (_, number) in enumerate(world.ledger, start=1)),
        next_stray_tag=STRAY_TAG,
        strays=tuple((tag, m) for tag, (_, m) in enumerate(world.strays, start=STRAY_TAG)),
        strays_told=0,
    )


def spent(world: World, fault: str) -> World:
    """
    Take one of a kind of fault away, and with the last of a kind what only that could bring back.
    """
    faults = world.faults._replace(**{fault: getattr(world.faults, fault) - 1})
    world = world._replace(faults=faults)
    if not (faults.broker_restarts or faults.source_restarts):
        world = world._replace(acked=())
    if not faults.broker_restarts:
        world = world._replace(released=(), released_strays=())
    return world if faults.redis_regressions else world._replace(redis_before=())


def waits(world: World, m: int) -> bool:
    """
    Say whether message *m* is in the ingress, delivered or not.
    """
    return (
        any(message == m for message, _ in world.ingress)
        or any(message == m for _, message in world.unacked)
        or m in world.lingering
    )


@lru_cache
def subsets(count: int) -> tuple[tuple[int, ...], ...]:
    """
    Return every choice of the indexes below *count*.
    """
    sizes = range(count + 1)
    return tuple(itertools.chain.from_iterable(itertools.combinations(range(count), size) for size in sizes))
