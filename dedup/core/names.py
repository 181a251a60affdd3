"""Name what surrounds a guarded queue."""

from __future__ import annotations


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
