"""The small worlds of the relay that are explored whole; larger ones are in explore.py."""

from __future__ import annotations

from typing import Any


def world(**settings: Any) -> dict[str, Any]:
    """
    Return the settings of a world: see Oracle and Servers.
    """
    return settings


#: Batches are forwarded in transactions.
EXACT = {
    "two kills": world(kills=2, batch_max=1, prefetch=1),
    "a kill while much is in flight": world(kills=1),
    "three kills of one message": world(messages=1, kills=3, batch_max=1),
    "three messages in batches": world(messages=3, copies=1, kills=1, prefetch=2),
    "a stop and a kill": world(copies=1, kills=1, stops=1, prefetch=2),
    "the broker restarts": world(broker_restarts=1, prefetch=2),
    "the broker restarts twice": world(messages=1, copies=1, kills=1, broker_restarts=2, batch_max=1),
    "Redis restarts": world(kills=1, redis_regressions=1, batch_max=1, prefetch=1),
    "Redis restarts and loses two writes": world(
        messages=3, copies=1, kills=1, redis_regressions=1, lost_writes=2, batch_max=1, prefetch=1
    ),
    "Redis restarts and loses what two relays wrote": world(
        copies=1, kills=2, redis_regressions=1, lost_writes=3, batch_max=1, prefetch=1
    ),
    "Redis restarts twice": world(messages=1, kills=2, redis_regressions=2, batch_max=1),
    "Redis restarts and is emptied, the relay lives": world(
        redis_regressions=1, redis_emptied=1, batch_max=1, marking=()
    ),
    "Redis is emptied": world(copies=1, kills=1, redis_emptied=1, prefetch=2),
    "Redis is emptied and the relay killed twice": world(
        messages=1, copies=3, kills=2, redis_emptied=1, batch_max=1
    ),
    "Redis is emptied and the broker restarts": world(
        messages=1, redis_emptied=1, broker_restarts=1, batch_max=1
    ),
    "answers of Redis are lost": world(kills=1, lost_replies=2, prefetch=2),
    "a fence is lost": world(kills=1, lost_fences=1, batch_max=1, prefetch=1),
    "a fence is lost and Redis restarts": world(
        messages=1, kills=1, lost_fences=1, redis_regressions=1, batch_max=1
    ),
    "a commit is partial": world(copies=1, kills=1, partial_commits=1),
    "a transaction returns messages": world(copies=1, refusals=2, stops=1, batch_max=2),
    "there is no queue": world(copies=1, missing_queues=1, kills=1, batch_max=1, prefetch=2),
    "there is no queue, twice": world(copies=1, missing_queues=2, batch_max=2),
    "there is no queue for one of two copies": world(messages=1, missing_queues=1, kills=2, batch_max=1),
    "there is no queue, and the broker restarts": world(
        messages=1, copies=1, missing_queues=1, kills=1, broker_restarts=1, batch_max=1
    ),
    "there is no queue, and Redis restarts": world(
        messages=1, copies=1, missing_queues=1, kills=1, redis_regressions=1, batch_max=1
    ),
    "there is no queue, and a stop": world(
        copies=1, missing_queues=1, stops=1, kills=1, batch_max=1, prefetch=2
    ),
    "the ledger is rewritten all the time": world(kills=1, anchor_every_s=1.0, prefetch=2),
    "the ledger is rewritten while servers restart": world(
        messages=1, copies=1, kills=1, broker_restarts=1, redis_regressions=1, anchor_every_s=1.0, batch_max=1
    ),
    "everything at once": world(
        messages=1, copies=1, kills=1, broker_restarts=1, redis_regressions=1, lost_replies=1, batch_max=1
    ),
    "Redis restarts twice while the ledger is rewritten": world(
        copies=1, kills=1, redis_regressions=2, anchor_every_s=1.0, batch_max=1, prefetch=1
    ),
    "Redis is emptied, the broker restarts, and a replay opens a window": world(
        copies=1, kills=1, redis_emptied=1, broker_restarts=1, batch_max=1, prefetch=1
    ),
    "Redis forgets that it had been rolled back": world(
        messages=1,
        copies=1,
        kills=1,
        redis_emptied=1,
        redis_regressions=1,
        broker_restarts=1,
        batch_max=1,
        prefetch=1,
    ),
    "Redis forgets all that was done since a clean stop, the broker restarts": world(
        messages=1, copies=1, stops=1, broker_restarts=1, redis_regressions=1, lost_writes=4, batch_max=1
    ),
    "untracked messages": world(untracked=1, copies=1, kills=1, stops=1),
    "untracked messages and an emptied Redis": world(
        messages=1, untracked=1, kills=1, redis_emptied=1, batch_max=1
    ),
    "untracked messages and servers that restart": world(
        messages=1, untracked=1, copies=1, stops=1, broker_restarts=1, redis_regressions=1, batch_max=1
    ),
}

#: Batches are forwarded with confirms, and nobody knows who leads the target.
CONFIRMED = {
    "a kill": world(kills=1, prefetch=2),
    "three kills of one message": world(messages=1, copies=1, kills=3, batch_max=1),
    "the target refuses": world(copies=1, kills=1, refusals=1, stops=1),
    "the target refuses retried messages": world(messages=1, kills=1, refusals=1, stops=1, batch_max=1),
    "the broker restarts": world(messages=1, kills=1, broker_restarts=1, refusals=1, batch_max=1),
    "there is no queue": world(copies=1, missing_queues=1, kills=1, batch_max=2),
    "there is no queue, and the broker restarts": world(
        messages=1, copies=1, missing_queues=1, kills=1, broker_restarts=1, batch_max=1
    ),
    "Redis loses everything": world(messages=1, kills=1, redis_regressions=1, redis_emptied=1, batch_max=1),
    "Redis restarts, the relay lives": world(redis_regressions=2, lost_replies=1, batch_max=1, marking=()),
    "a fence is lost": world(messages=1, copies=1, kills=1, lost_fences=1, redis_regressions=1, batch_max=1),
    "Redis forgets all that was done since a clean stop": world(
        messages=1, copies=1, kills=1, stops=1, redis_regressions=1, lost_writes=4, batch_max=1
    ),
    "untracked messages": world(untracked=1, copies=1, kills=1, redis_regressions=1, batch_max=1),
    "a paused relay writes into a Redis that went back": world(
        messages=1,
        copies=1,
        batch_max=1,
        kills=1,
        redis_regressions=1,
        lost_fences=1,
        lost_writes=3,
        anchor_every_s=2.0,
    ),
    "a paused relay writes into a Redis that was emptied": world(
        messages=1,
        copies=1,
        batch_max=1,
        kills=1,
        redis_emptied=1,
        lost_fences=1,
        lost_writes=3,
        anchor_every_s=2.0,
    ),
}

#: Batches are forwarded with confirms to a target whose leader is known: markers of parts prove something. A kill puts one
#: message in doubt at the most, and another leader what nobody was told it had.
SURVEYED = {
    "a kill": world(copies=1, kills=1),
    "a kill within a batch of three": world(messages=3, copies=1, kills=1, batch_max=3, prefetch=3),
    "a kill where a marker follows each second message": world(
        messages=3, copies=1, kills=1, batch_max=3, prefetch=3, marker_every=2
    ),
    "two kills": world(messages=1, kills=2, batch_max=1),
    "another leader": world(copies=1, kills=1, elections=1),
    "another leader, twice": world(messages=1, kills=1, elections=2, batch_max=1),
    "another leader, and the ledger is rewritten all the time": world(
        copies=1, kills=1, elections=1, anchor_every_s=1.0, batch_max=1, prefetch=2
    ),
    "the broker restarts": world(messages=1, kills=1, broker_restarts=1, batch_max=1),
    "Redis restarts and loses two writes": world(
        copies=1, kills=1, redis_regressions=1, lost_writes=2, batch_max=1, prefetch=2
    ),
    "Redis is emptied": world(messages=1, kills=1, redis_emptied=1, batch_max=1),
    "a stop and a kill": world(copies=1, kills=1, stops=1, batch_max=1, prefetch=2),
    "a fence is lost and another leader comes": world(
        messages=1, copies=1, kills=1, lost_fences=1, elections=1, batch_max=1
    ),
    "the target refuses": world(messages=1, copies=1, kills=1, refusals=1, elections=1),
    "there is no queue": world(copies=1, kills=1, missing_queues=1, batch_max=2),
    "there is no queue, and another leader": world(
        messages=1, kills=1, missing_queues=1, elections=1, batch_max=1
    ),
}


#: A relay of AMQP 1.0, which forwards with confirms and marks no parts, takes over from one of 0.9.1, and gives back.
IN_TURNS = {
    "transactions, and a kill": world(copies=1, kills=1, marking=()),
    "transactions, and a stop": world(kills=1, stops=1, copies=1, batch_max=1, marking=("kills",)),
    "transactions, and two kills": world(messages=1, kills=2, batch_max=1, marking=("kills",)),
    "transactions, and the broker restarts": world(
        messages=1, kills=1, broker_restarts=1, batch_max=1, marking=("kills", "broker_restarts")
    ),
    "transactions, and Redis restarts": world(
        messages=1, copies=1, kills=2, redis_regressions=1, batch_max=1, marking=("kills",)
    ),
    "transactions, and a commit is partial": world(
        messages=1, copies=1, kills=2, partial_commits=1, batch_max=1, marking=("kills", "partial_commits")
    ),
    "parts, and a kill": world(copies=1, kills=1, exact=False, surveyed=True),
    "parts, and two kills": world(
        messages=1, kills=2, batch_max=1, exact=False, surveyed=True, marking=("kills",)
    ),
    "parts, a kill and another leader": world(copies=1, kills=1, elections=1, exact=False, surveyed=True),
}


#: The relay tells the audit of every arrival: what the log says must be so.
AUDITED = {
    "a kill": world(copies=1, kills=1),
    "three copies and two kills": world(messages=1, copies=3, kills=2, batch_max=1),
    "the broker restarts": world(messages=1, kills=1, broker_restarts=1, batch_max=1),
    "Redis restarts": world(messages=1, kills=1, redis_regressions=1, batch_max=1),
    "Redis is emptied": world(messages=1, kills=1, redis_emptied=1, batch_max=1),
    "a commit is partial": world(messages=1, kills=1, partial_commits=1),
    "there is no queue": world(messages=1, kills=1, missing_queues=1, batch_max=1),
    "a fence is lost": world(messages=1, kills=1, lost_fences=1, batch_max=1),
    "confirmed: a kill": world(messages=1, kills=1, exact=False),
    "confirmed: the target refuses": world(copies=1, kills=1, refusals=1, exact=False),
    "confirmed: the target refuses one of two copies": world(messages=1, refusals=1, stops=1, exact=False),
    "surveyed: a kill": world(copies=1, kills=1, exact=False, surveyed=True),
    "surveyed: two kills": world(messages=1, copies=1, kills=2, exact=False, surveyed=True),
    "surveyed: another leader": world(copies=1, kills=1, elections=1, exact=False, surveyed=True),
}


def all_worlds() -> dict[str, dict[str, Any]]:
    """
    Return every world by its full name.
    """
    return {
        **EXACT,
        **{f"confirmed: {name}": {**settings, "exact": False} for name, settings in CONFIRMED.items()},
        **{
            f"surveyed: {name}": {**settings, "exact": False, "surveyed": True}
            for name, settings in SURVEYED.items()
        },
        **{f"in turns: {name}": {**settings, "in_turns": True} for name, settings in IN_TURNS.items()},
        **{f"audited: {name}": {**settings, "audited": True} for name, settings in AUDITED.items()},
    }
