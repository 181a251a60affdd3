"""Name what surrounds a guarded queue."""

from __future__ import annotations

from attrs import evolve, frozen


def ingress(queue: str) -> str:
    """
    Return the name of the queue in front of *queue*: publishers publish there.
    """
    return f"{queue}.dedup"


def forward_exchange(queue: str) -> str:
    """
    Return the name of the fanout exchange that leads to *queue* alone.
    """
    return f"{queue}.dedup.forward"


def leading(queue: str) -> tuple[str, str]:
    """
    Return the names of the exchanges a relay of *queue* publishes messages to.
    """
    return forward_exchange(queue), quarantine_exchange(queue)


def strays_exchange(queue: str) -> str:
    """
    Return the name of the fanout exchange that leads what found no queue to the ledger of *queue*.
    """
    return f"{queue}.dedup.strays"


def ledger(queue: str) -> str:
    """
    Return the name of the queue that holds the markers of the relay of *queue*.
    """
    return f"{queue}.dedup.ledger"


def audit(queue: str) -> str:
    """
    Return the name of the queue that holds what the audit is told of *queue*, until it is collected.
    """
    return f"{queue}.dedup.audit"


def quarantine(queue: str) -> str:
    """
    Return the name of the queue that holds what must not enter *queue* unseen.
    """
    return f"{queue}.quarantine"


def quarantine_exchange(queue: str) -> str:
    """
    Return the name of the fanout exchange that leads to the quarantine of *queue* alone.
    """
    return f"{queue}.dedup.quarantine"


def dead(queue: str) -> str:
    """
    Return the name of the queue that holds the messages of *queue* that were given up.
    """
    return f"{queue}.dead"


def releasing(queue: str) -> str:
    """
    Return the name of the queue through which messages leave the dead of *queue*; there only while some do.
    """
    return f"{queue}.dead.releasing"


def moves(source: str) -> str:
    """
    Return what everything is named after that a move out of *source* needs.
    """
    return f"{source}.dedup.move"


def trash(source: str) -> str:
    """
    Return the name of the stream that takes what a move out of *source* cannot deliver.
    """
    return f"{source}.dedup.trash"


@frozen
class Route:
    """
    The way of one relay: what it takes from, what it publishes to, and where its markers are.
    """

    #: What it is called: of a shim the guarded queue.
    queue: str
    source: str
    #: Empty: there are many.
    target: str
    #: The exchange that leads to the target alone.
    forward: str
    #: The exchange that leads to where messages go that must not enter the target.
    aside: str
    #: The exchange that leads what finds no queue to the ledger.
    strays: str
    ledger: str
    #: The queue that holds what the audit is told; empty: there is none.
    audit: str = ""
    #: What the names of exchanges begin with that lead to one of many targets each; empty: there are none.
    each: str = ""

    @property
    def leading(self) -> tuple[str, str]:
        """
        Return the exchanges that messages are published to.
        """
        return self.forward, self.aside


def guarding(queue: str) -> Route:
    """
    Return the way through the guard of *queue*.
    """
    return Route(
        queue,
        ingress(queue),
        queue,
        forward_exchange(queue),
        quarantine_exchange(queue),
        strays_exchange(queue),
        ledger(queue),
        audit(queue),
    )


def moving(source: str, target: str) -> Route:
    """
    Return the way from one queue into another; *target* is empty where each message goes to a queue of its own.
    """
    base = moves(source)
    return Route(
        base, source, target, base, f"{base}.trash", f"{base}.strays", f"{base}.ledger", each=f"{base}.to."
    )


def moving_across(source: str, target: str, broker: str) -> Route:
    """
    Return the way from a queue of one broker into one of another: only the trash stays where the source is.

    Args:
        broker: What tells the source's broker from others, in letters and digits: queues of two may have one name.
    """
    there = moving(f"{source}.dedup.{broker}", target)
    return evolve(there, source=source, aside=moving(source, "").aside)
