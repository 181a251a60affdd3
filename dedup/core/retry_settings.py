"""What one retrier is told to do, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attrs import field, frozen

from dedup.core.schedule import Backoff


@frozen
class RetrySettings:
    """
    Limits and choices of the retrier of one dead-letter queue.
    """

    dead_letter_queue: str
    backoff: Backoff = field(factory=Backoff)
    #: Queues that have a backoff of their own.
    queues: Mapping[str, Backoff] = field(factory=dict)
    #: Messages and bytes of one batch at the most; a larger message is a batch of its own.
    batch_max: int = 500
    batch_bytes_max: int = 8 * 1024 * 1024
    #: A larger message is not scheduled; bytes.
    message_bytes_max: int = 16 * 1024 * 1024
    #: Messages published in a second at the most: what has become due in a long outage comes back so fast.
    rate_max: float = 500.0
    #: How often it is asked what is due, while nothing is; seconds.
    poll_s: float = 0.2
    #: How long a digest outlives the arrival of its ack; seconds, longer than a broker needs to write that to disk.
    keep_s: float = 30.0
    #: How often dead sessions are looked for, and what is gone from a full schedule; seconds.
    sweep_s: float = 2.0
    #: How long letters are held that find no room, before they are given back; seconds. Well below the broker's 30 minute ack timeout.
    hold_s: float = 600.0
    #: First and longest pause before a refused message is published again; seconds.
    refused_delay_s_min: float = 1.0
    refused_delay_s_max: float = 60.0
    #: The first message sent out is one the broker closes channels for: it gets an obituary.
    bury_first: bool = False


class Phase(Enum):
    """
    How far a session is.
    """

    NEW = "new"
    REGISTERING = "registering"
    WORKING = "working"
    #: Nothing new is begun.
    STOPPING = "stopping"
    CLOSING = "closing"
    ENDED = "ended"
