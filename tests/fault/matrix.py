"""What a row of the fault matrix is: a fault, the queues it strikes, what is promised, and what its control must show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    from dedup.amqp091.administration import QueueType
    from tests.fault.scene import Scene


@frozen
class Layout:
    """One kind of guarded queue."""

    name: str
    exact: bool
    ingress: QueueType
    target: QueueType
    #: What publishers, and the shim with ingress and target, speak.
    protocol: str = "amqp091"


EXACT = Layout("exact", exact=True, ingress="classic", target="classic")
CONFIRMED = Layout("confirmed", exact=False, ingress="classic", target="classic")
QUORUM = Layout("quorum", exact=False, ingress="quorum", target="quorum")
AMQP10 = Layout("amqp10", exact=False, ingress="classic", target="classic", protocol="amqp10")
AMQP10_QUORUM = Layout("amqp10-quorum", exact=False, ingress="quorum", target="quorum", protocol="amqp10")
OVER_091 = (EXACT, CONFIRMED, QUORUM)
OVER_10 = (AMQP10, AMQP10_QUORUM)
LAYOUTS = OVER_091 + OVER_10


class Marks(Enum):
    """How many messages one fault may leave marked."""

    NONE = "none"
    ONE = "at most one message"
    BATCH = "at most the batch in flight"
    WINDOW = "at most a window of each publisher"

    def allow(self, marked: int, *, faults: int, batch_max: int) -> bool:
        """Tell whether *faults* faults may have left this many marked."""
        limits = {Marks.NONE: 0, Marks.ONE: faults, Marks.BATCH: faults * batch_max}
        return self is Marks.WINDOW or marked <= limits[self]


#: What a fault allows that ends a session of the shim on a healthy broker: the ledger tells everything under exact
#: forwarding, all but the newest message with a quorum target, and nothing of the batch with a classic one or over AMQP 1.0.
IN_DOUBT = {
    EXACT: Marks.NONE,
    CONFIRMED: Marks.BATCH,
    QUORUM: Marks.ONE,
    **dict.fromkeys(OVER_10, Marks.BATCH),
}
#: What a fault allows that the shim sits out.
WAITED_OUT = dict.fromkeys(LAYOUTS, Marks.NONE)


class Reach(Enum):
    """What a fault strikes, which decides what may run beside it."""

    #: The scene's own processes and connections.
    SCENE = "scene"
    #: A Redis: each scene has one of its own. The broker's version makes no difference.
    REDIS = "redis"
    #: The broker, or a setting of it: all scenes on it are struck at the same moment.
    BROKER = "broker"
    #: Nodes of a cluster of three.
    CLUSTER = "cluster"


class Shows(Enum):
    """What the same fault does when a plain loop stands in the shim's place."""

    DOUBLED = "doubled"
    LOST = "lost"
    DISORDERED = "out of order"
    #: Neither loss nor duplicate is possible; that it was felt is all there is to see.
    FELT = "failed"


@frozen
class Cell:
    """
    One cell of the matrix: lost 0 and unmarked duplicates 0 are promised in all of them.
    """

    #: Its row, by a short name.
    fault: str
    #: The fault in words, for the table.
    what: str
    layout: Layout
    #: Strikes; counts each strike with `Scene.struck`.
    inject: Callable[[Scene], None] = field(repr=False)
    #: What sets it apart from other cells of its row and layout, such as a step.
    detail: str = ""
    marks: Marks = Marks.NONE
    #: The same on RabbitMQ before 3.13, where markers within a batch prove nothing; None: no difference.
    marks_before_3_13: Marks | None = None
    #: Whether first copies also keep their order.
    ordered: bool = True
    reach: Reach = Reach.SCENE
    #: The control must show one of these.
    shows: frozenset[Shows] = frozenset({Shows.DOUBLED})
    #: The loop of the control asks Redis which messages it has seen.
    control_asks_redis: bool = False
    #: `make test` runs it; all are run by `make fault`.
    quick: bool = True

    @property
    def name(self) -> str:
        """Its name in tests, tables and patterns."""
        return "/".join(filter(None, (self.fault, self.detail, self.layout.name)))

    def marks_on(self, version: str) -> Marks:
        """Return how many marks are allowed on this version of RabbitMQ."""
        return self.marks_before_3_13 or self.marks if _number(version) < (3, 13) else self.marks

    def runs_on(self, version: str) -> bool:
        """Tell whether this version of RabbitMQ speaks the protocol of the layout; 3.x does not speak AMQP 1.0 as dedup does."""
        return self.layout not in OVER_10 or _number(version) >= (4, 0)


def _number(version: str) -> tuple[int, int]:
    major, minor = map(int, version.split(".")[:2])
    return major, minor


@frozen
class Outcome:
    """What one run of a cell came to."""

    #: How often the fault struck.
    faults: int
    messages: int = 0
    lost: int = 0
    duplicates: int = 0
    marked: int = 0
    disordered: int = 0
    unexpected: int = 0
    quarantined: int = 0
    #: How often the forwarder told of something that had gone wrong.
    felt: int = 0
    examples: tuple[str, ...] = ()

    def shown(self) -> set[Shows]:
        """Return what the fault did."""
        did = {
            Shows.DOUBLED: self.duplicates,
            Shows.LOST: self.lost,
            Shows.DISORDERED: self.disordered,
            Shows.FELT: self.felt,
        }
        return {shows for shows, count in did.items() if count}


def broken(cell: Cell, outcome: Outcome, version: str, batch_max: int) -> list[str]:
    """Return which promises of *cell* do not hold on this *version*, each in words."""
    found = []
    if not outcome.faults:
        found.append("the fault never struck")
    for what, count in (
        ("lost", outcome.lost),
        ("doubled without a mark", outcome.duplicates),
        ("that nobody sent", outcome.unexpected),
        ("out of order", outcome.disordered if cell.ordered else 0),
    ):
        if count:
            found.append(f"{count} messages {what}: {', '.join(outcome.examples)}")
    allowed = cell.marks_on(version)
    if not allowed.allow(outcome.marked, faults=outcome.faults, batch_max=batch_max):
        found.append(f"{outcome.marked} messages marked by {outcome.faults} faults; {allowed.value} allowed")
    return found


def only(marks: Mapping[Layout, Marks], layouts: Collection[Layout]) -> dict[Layout, Marks]:
    """Return what *marks* says of *layouts*."""
    return {layout: allowed for layout, allowed in marks.items() if layout in layouts}


def row(
    fault: str,
    what: str,
    inject: Callable[[Scene], None],
    marks: Mapping[Layout, Marks],
    *,
    quick: Collection[Layout] | None = None,
    **options: Any,
) -> list[Cell]:
    """
    Return the cells of one fault: one for each layout of *marks*; *options* are those of `Cell`.

    Args:
        quick: Layouts that `make test` runs too; the first one by default.
    """
    chosen = [next(iter(marks))] if quick is None else quick
    return [
        Cell(
            fault,
            what,
            layout,
            inject,
            marks=allowed,
            marks_before_3_13=Marks.BATCH if allowed is Marks.ONE else None,
            quick=layout in chosen,
            **options,
        )
        for layout, allowed in marks.items()
    ]
