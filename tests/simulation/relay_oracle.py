"""Say of a state of a relay's world whether it keeps the promise, and which faults allow marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.simulation import relay_log
from tests.simulation.relay_servers import Servers
from tests.simulation.relay_state import World, waits

#: Faults that allow marks and marked copies, by the way of forwarding.
MARKING_EXACT = ("broker_restarts", "redis_emptied", "partial_commits", "missing_queues")
MARKING_CONFIRMED = (*MARKING_EXACT, "elections", "kills", "lost_fences", "source_restarts")
#: Faults that put no more in doubt than follows one marker, where it can be read who leads the target.
MARKING_ONE = ("kills", "lost_fences", "source_restarts")


class Oracle(Servers):
    """
    Nothing is lost; a sequence has at most one unmarked copy in the target; and without a fault that allows marks
    there is no mark and no second copy.

    Args:
        marking: Faults that allow marks and marked copies; by default those that the guarantees name.
        settings: What Servers takes.
    """

    def __init__(self, *, marking: Sequence[str] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        if marking is None:
            marking = MARKING_EXACT if self.exact else MARKING_CONFIRMED
        if not self.exact and self.start.faults.refusals:
            # Which part of a batch was refused is known to Redis alone.
            marking = (*marking, "redis_regressions")
        if self.surveyed:
            marking = [fault for fault in marking if fault not in MARKING_ONE]
        self.marking = marking

    def wrong(self, world: World) -> str:
        """
        Say what is wrong with *world*, or nothing.
        """
        if world.log.hole and not self.happened(world, "partial_commits"):
            return world.log.hole
        innocent = not self.happened(world, *self.marking)
        marks_max = self.marker_every * self.happened(world, *MARKING_ONE) if self.surveyed else 0
        marks = {m for m, marked in world.target if marked and m not in self.untracked}
        if innocent and len(marks) > marks_max:
            return f"more than {marks_max} messages are marked although no fault allows it"
        for m in range(self.messages):
            if not world.sent[m]:
                continue
            if m not in self.untracked and (told := relay_log.wrong(world, m)):
                return told
            copies = [marked for message, marked in world.target if message == m]
            strays = any(stray == m for _, stray in world.strays)
            if not copies and m not in world.quarantine and not waits(world, m) and not strays:
                return f"message {m} is lost"
            if copies.count(False) > (world.sent[m] if m in self.untracked else 1):
                return f"message {m} is doubled without a mark"
            if innocent and not marks_max and m not in self.untracked and (len(copies) > 1 or True in copies):
                return f"message {m} is doubled or marked although no fault allows it"
            if innocent and m in world.quarantine:
                return f"message {m} is quarantined although no fault allows it"
        return ""
