"""What one relay is told to do."""

from __future__ import annotations

from attrs import frozen

from dedup.core.backoff import delay_s
from dedup.core.identity import UserBinding
from dedup.core.message_ids import MESSAGE_ID_KEEP_S, MESSAGE_IDS_MAX
from dedup.core.publishers import PUBLISHER_IDLE_S, PUBLISHERS_MAX
from dedup.core.window import WINDOW_SIZE, WINDOW_SIZE_MAX


@frozen
class RelaySettings:
    """
    Limits and choices of one relay; DESIGN sections 5 and 6 have the reasons.
    """

    window_size: int = WINDOW_SIZE
    publishers_max: int = PUBLISHERS_MAX
    publisher_idle_s: float = PUBLISHER_IDLE_S
    #: Messages of one batch at the most.
    batch_max: int = 500
    #: Bytes of bodies of one batch at the most; a larger message is a batch of its own.
    batch_bytes_max: int = 8 * 1024 * 1024
    #: Forward in transactions; else with confirms.
    exact: bool = True
    #: The target is a classic queue that cannot refuse: markers of transactions prove something.
    trust_exact: bool = True
    #: Quarantine messages without anything to tell them by instead of forwarding them.
    quarantine_untracked: bool = False
    #: Tell messages without a stamp by their message id.
    by_message_id: bool = False
    #: The header that holds it; empty: the property message-id.
    message_id_header: str = ""
    message_ids_max: int = MESSAGE_IDS_MAX
    message_id_keep_s: float = MESSAGE_ID_KEEP_S
    #: Tell messages without a stamp by group-id and group-sequence (AMQP 1.0).
    by_group_sequence: bool = False
    #: Send duplicates to quarantine instead of dropping them.
    park_duplicates: bool = False
    #: Quarantine what has the sequence of a message and another body, instead of dropping it.
    check_bodies: bool = False
    #: Quarantine stamped messages whose publisher id is not bound to the user that published them.
    bind_publisher_to_user: UserBinding = UserBinding.OFF
    #: Messages between two markers of parts where batches are forwarded with confirms.
    marker_every: int = 1
    #: How often it is read who leads the target; seconds.
    survey_every_s: float = 10.0
    #: How long what markers of parts have proven waits for the next message, whose confirm makes it
    #: final; then one of them is forwarded marked. Seconds.
    proof_wait_s: float = 5.0
    #: How long a marker is kept; seconds, longer than Redis needs to write to disk.
    marker_keep_s: float = 5.0
    #: How often the ledger is rewritten; seconds, well below the broker's 30 minute ack timeout.
    anchor_every_s: float = 300.0
    #: First and longest pause before a refused message is published again; seconds.
    refused_delay_s_min: float = 0.1
    refused_delay_s_max: float = 10.0
    #: Refusals of one batch until the session ends, for a new channel (RabbitMQ 3.10 goes on refusing for
    #: a quorum queue that has room again) and well before the ingress' ack timeout of 30 minutes.
    refusals_max: int = 8
    #: Everything is forwarded, and only what was forwarded before is not (moving.py).
    moving: bool = False
    #: The ledger is in the source's broker: a marker that is there proves that this has not restarted, so that nothing
    #: which was acknowledged can come back.
    source_witnessed: bool = True
    #: What the target refuses for so long, twice at least, goes to quarantine; None: it is tried without end. Seconds.
    refused_aside_s: float | None = None
    #: Tell the audit of every arrival.
    audit: bool = False
    #: The first message sent out is one the broker closes channels for: quarantine it stripped.
    strip_first: bool = False

    def __attrs_post_init__(self) -> None:
        # What is larger could be written to Redis and not read again.
        assert 1 <= self.window_size <= WINDOW_SIZE_MAX, self.window_size

    def refused_pause_s(self, refusals: int) -> float:
        """
        Return how long to wait after so many refusals of one batch, from 1; seconds.
        """
        return delay_s(refusals - 1, 0.0, first_s=self.refused_delay_s_min, max_s=self.refused_delay_s_max)
