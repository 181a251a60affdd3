"""The phases of a relay."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Phase(Enum):
    """
    What a relay is waiting for.
    """

    NEW = "new"
    CLAIMING = "claiming"
    READING_LEDGER = "reading-ledger"
    SURVEYING = "surveying"
    RECOVERING = "recovering"
    ANCHORING = "anchoring"
    IDLE = "idle"
    SAVING = "saving"
    FORWARDING = "forwarding"
    PROVING = "proving"
    REFUSED = "refused"
    FAILING = "failing"
    RECORDING = "recording"
    CLOSING = "closing"
    MARKING_CLEAN = "marking-clean"
    ENDED = "ended"


#: The ledger has not been read up to the own first marker.
UNREAD: Final = frozenset({Phase.NEW, Phase.CLAIMING, Phase.READING_LEDGER})
#: Nothing was taken from the ingress yet.
UNRECOVERED: Final = frozenset(
    {Phase.NEW, Phase.CLAIMING, Phase.READING_LEDGER, Phase.SURVEYING, Phase.RECOVERING}
)
