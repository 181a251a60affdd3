"""Take what shims tell the audit out of its queues and keep it in the event log, each batch once."""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import define, field, frozen

from dedup.amqp091.collecting import Intake, Taken, intake
from dedup.core import names
from dedup.core.event_log import decode_record
from dedup.errors import RecordFormatError
from dedup.eventlog.folder import Folder, Place, Stretch, joined

#: Records of each queue that may be unacknowledged.
PREFETCH: Final = 5_000
#: A file is written when it has so many rows, or when its oldest row has waited so long (seconds; RabbitMQ closes channels
#: that leave a delivery unacknowledged for 30 minutes).
ROWS_MAX: Final = 500_000
AGE_S_MAX: Final = 60.0
#: How long it waits for a message before it looks at the clock; seconds.
POLL_S: Final = 0.5
#: Partitions whose rows are remembered.
_PLACES_MAX: Final = 256

Notice = Callable[[str, dict[str, Any]], None]


@frozen
class CollectorSettings:
    """
    What a collector is told to do.
    """

    rows_max: int = ROWS_MAX
    age_s_max: float = AGE_S_MAX
    #: End when nothing waits any more.
    until_empty: bool = False


@define
class _Part:
    """
    Rows of one partition that are not written yet.
    """

    columns: dict[str, list[Any]] = field(factory=dict)
    stretches: list[Stretch] = field(factory=list)

    def add(self, columns: Mapping[str, Sequence[Any]], stretch: Stretch) -> None:
        for name, values in columns.items():
            self.columns.setdefault(name, []).extend(values)
        self.stretches = joined((*self.stretches, stretch))


class Collector:
    """
    One collector of the event logs of several queues; its audit queues have one active consumer each.

    What it takes is acknowledged when it is in files, so a collector that dies leaves everything either in the queue or
    in a file, or in both: a record that a file has already is passed over.
    """

    def __init__(
        self,
        folder: Folder,
        settings: CollectorSettings | None = None,
        *,
        notice: Notice = lambda _name, _facts: None,
    ) -> None:
        self._folder = folder
        self._settings = settings or CollectorSettings()
        self._notice = notice
        self._parts: dict[Place, _Part] = {}
        #: What the files of a partition had when it was first needed, and what was added since.
        self._kept: dict[Place, list[Stretch]] = {}
        self._rows = self._records = 0
        self._newest_tag = 0
        self._since_s = 0.0

    def run(self, amqp: str, queues: Sequence[str], stopping: Callable[[], bool]) -> None:
        """
        Collect until *stopping* says so, or until nothing waits; then write what is left.

        Raises:
            BrokerUnavailableError: the broker is lost; what was not written comes again.
            LogUnavailableError: the log cannot be written; what was not written stays in the queue.
            TopologyError: a queue is missing.
        """
        guarded = {names.audit(queue): queue for queue in queues}
        with intake(amqp, guarded, prefetch=PREFETCH) as source:
            while not stopping():
                taken = source.take(POLL_S)
                for message in taken:
                    self.add(message, guarded[message.queue])
                if self.is_due():
                    self.flush(source)
                if not taken and self._settings.until_empty and source.is_empty():
                    break
            self.flush(source)

    def add(self, message: Taken, queue: str) -> None:
        """
        Take note of one message of the audit queue of *queue*.

        Raises:
            LogUnavailableError: the log cannot be read or written.
        """
        if not self._newest_tag:
            self._since_s = time.monotonic()
        try:
            columns = decode_record(message.body)
        except RecordFormatError as error:
            name = hashlib.sha256(message.body).hexdigest()[:32]
            path = self._folder.put_aside(queue, name, message.body)
            self._notice("dedup.record_unreadable", {"queue": queue, "reason": str(error), "kept": path})
        else:
            if columns["offset"]:
                self._add_rows(columns, queue)
        self._newest_tag = message.tag
        self._records += 1

    def is_due(self) -> bool:
        """
        Say whether it is time to write.
        """
        if not self._newest_tag:
            return False
        return (
            self._rows >= self._settings.rows_max
            or time.monotonic() - self._since_s >= self._settings.age_s_max
            or self._records >= PREFETCH // 2
        )

    def flush(self, source: Intake) -> None:
        """
        Write what there is, then acknowledge it.

        Raises:
            LogUnavailableError: nothing was acknowledged.
        """
        if not self._newest_tag:
            return
        for place, part in self._parts.items():
            path = self._folder.add(place, part.columns, part.stretches)
            self._kept[place] = joined((*self._kept[place], *part.stretches))
            self._notice(
                "dedup.collected",
                {"queue": place.queue, "rows": len(part.columns["offset"]), "file": path},
            )
        tag, self._newest_tag = self._newest_tag, 0
        self._parts, self._rows, self._records = {}, 0, 0
        if len(self._kept) > _PLACES_MAX:
            self._kept.clear()  # read again when it is needed
        source.acknowledge(tag)

    def _add_rows(self, columns: dict[str, list[Any]], queue: str) -> None:
        moment = dt.datetime.fromtimestamp(columns["arrived_at"][0] / 1_000_000, dt.UTC)
        # The folder is named by the queue that was asked for; whatever a forged record says, it goes nowhere else.
        columns["queue"] = [queue] * len(columns["offset"])
        place = Place(moment.date(), queue)
        stretch = Stretch(columns["token"][0], columns["offset"][0], columns["offset"][-1])
        if place not in self._kept:
            self._kept[place] = self._folder.stretches(place)
        stored = self._parts.get(place, _Part())
        if any(kept.holds(stretch) for kept in (*stored.stretches, *self._kept[place])):
            return
        stored.add(columns, stretch)
        self._parts[place] = stored
        self._rows += len(columns["offset"])
