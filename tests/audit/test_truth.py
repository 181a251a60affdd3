"""Whatever was put into a log is found, to the message, and nothing else is."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dedup.audit.schema import CAUSES, CHECKS, FINDINGS, LOG_GAPS, RATES, VERDICT
from tests.audit.conftest import Audited
from tests.audit.second_engine import COMPUTED, compute
from tests.audit.tables import as_dicts
from tests.audit.world import END_CUT, HOLE, KINDS, World


def test_every_injected_fault_is_found_and_nothing_else(world: World, audited: Audited) -> None:
    """The findings are the list of what was injected: kind, message and the offset of the arrival to blame."""
    injected = query(world, 'SELECT kind, queue, publisher, sequence, token, "offset" FROM injected')
    assert {kind for kind, *_ in injected} == {"lost", "false-drop", "escaped", "unproven"}
    found = Counter(row[:6] for row in audited.tables["findings"])
    assert found == Counter(injected)


def test_the_log_has_every_kind_of_traffic(world: World) -> None:
    """None of the tests here passes for want of something to find."""
    seen = {row[0] for row in query(world, "SELECT DISTINCT verdict FROM events")}
    assert seen == {"new", "duplicate", "too-old", "untracked", "malformed", "unadmitted", "returning"}
    ((lowest, highest),) = query(world, "SELECT min(sequence), max(sequence) FROM events")
    assert (lowest, highest) == (1, 2**63 - 1)
    ((marked, twice),) = query(
        world,
        "SELECT count(*) FILTER (marked AND forwarded), count(*) FILTER (queue = 'queue-1' AND batch % 50 = 7) FROM events",
    )
    assert marked
    assert twice
    assert len(KINDS) > 20


def test_holes_in_the_log_are_found(world: World, audited: Audited) -> None:
    """Arrivals cut out of a relay's records, and off the end of them, are named to the number."""
    gaps = as_dicts(audited.tables["log_gaps"], LOG_GAPS)
    relays = query(world, "SELECT DISTINCT token FROM events WHERE queue = 'damaged' ORDER BY token")
    long = [token for (token,) in relays][:3]  # the fourth has a few arrivals only
    assert [(gap["token"], gap["first"], gap["last"]) for gap in gaps if gap["kind"] == "offsets"] == [
        (token, *HOLE) for token in long
    ]
    (cut,) = [gap for gap in gaps if gap["kind"] == "end"]
    assert (cut["token"], cut["missing"]) == (long[0], END_CUT)
    assert {gap["queue"] for gap in gaps} == {"damaged"}


def test_each_publisher_gets_its_verdict(world: World, audited: Audited) -> None:
    """Publishers with a fault are convicted, those of a queue with holes are incomplete, and the rest is clean."""
    judged = as_dicts(audited.tables["verdict"], VERDICT)
    faults = dict(
        query(
            world, "SELECT queue || '/' || publisher, bool_or(kind <> 'unproven') FROM injected GROUP BY ALL"
        )
    )
    for row in judged:
        name = f"{row['queue']}/{row['publisher']}"
        expected = {True: "convicted", False: "unproven", None: "clean"}[faults.get(name)]
        assert row["verdict"] == ("incomplete" if row["queue"] == "damaged" else expected), name
    assert {row["verdict"] for row in judged} == {"clean", "convicted", "incomplete", "unproven"}


def test_messages_that_never_arrived_are_counted(world: World, audited: Audited) -> None:
    """What is missing between a publisher's numbers is what was left out; a new range leaves nothing out."""
    judged = as_dicts(audited.tables["verdict"], VERDICT)
    # An older owner's numbers have gaps of their own, so its publishers are left to the second engine.
    wanted = query(
        world,
        """SELECT queue, publisher, any_value(messages) - count(DISTINCT sequence) FILTER (sequence <> base),
                any_value((messages > first_range)::INTEGER)
            FROM events JOIN publishers USING (queue, publisher) WHERE queue <> 'damaged'
            GROUP BY ALL HAVING count(*) FILTER (reason = 'too-old' AND attempt = 1) = 0""",
    )
    found = {(row["queue"], row["publisher"]): (row["missing"], row["jumps"]) for row in judged}
    assert sum(missing for *_, missing, _ in wanted) > 10
    assert {jumps for *_, jumps in wanted} == {0, 1}
    assert [(*name, *found[tuple(name)]) for *name, _, _ in wanted] == wanted


def test_each_record_counts_once(world: World, audited: Audited) -> None:
    """Records that a collector wrote twice change no number."""
    written = sum(1 for _ in world.path.rglob("part-1-*.parquet"))
    assert written, "nothing was written twice"
    rates = as_dicts(audited.tables["rates"], RATES)
    assert sum(row["events"] for row in rates) == world.events


def test_causes_are_those_injected(world: World, audited: Audited) -> None:
    """Retries, redeliveries, dead letters and older owners are told apart."""
    causes = Counter[str]()
    for row in as_dicts(audited.tables["causes"], CAUSES):
        causes[row["cause"]] += row["events"]
    ((retry, redelivery, owner, dead),) = query(
        world,
        """SELECT count(*) FILTER (verdict = 'duplicate' AND attempt > 1), count(*) FILTER (verdict = 'duplicate' AND attempt = 1),
            count(*) FILTER (reason = 'too-old' AND attempt = 1), count(*) FILTER (verdict = 'returning') FROM events""",
    )
    assert causes["publisher-retry"] == retry
    assert causes["broker-redelivery"] == redelivery
    assert causes["second-owner"] == owner
    assert causes["dead-letter"] == dead
    assert min(causes.values()) > 0


def test_the_checks_fail_for_what_is_wrong(world: World, audited: Audited) -> None:
    """Each number that decides is over its threshold, and the audit agrees with itself."""
    checks = {row["name"]: row for row in as_dicts(audited.tables["checks"], CHECKS)}
    counts = Counter(kind for (kind,) in query(world, "SELECT kind FROM injected"))
    assert checks["lost"]["value"] == counts["lost"]
    assert checks["false_drops"]["value"] == counts["false-drop"]
    assert checks["escaped"]["value"] == counts["escaped"]
    assert checks["unproven"]["value"] == counts["unproven"]
    assert {name: checks[name]["status"] for name in ("lost", "false_drops", "escaped", "log_holes")} == {
        "lost": "fail",
        "false_drops": "fail",
        "escaped": "fail",
        "log_holes": "incomplete",
    }
    assert checks["uncounted"]["status"] == checks["disagreement"]["status"] == "pass"


def test_a_second_engine_agrees(world: World, audited: Audited) -> None:
    """DuckDB, message by message and without masks, computes the same tables from the same files."""
    second = compute(world.path)
    for table in COMPUTED:
        assert second[table.name], table.name
        assert audited.tables[table.name] == second[table.name], table.name
    assert FINDINGS in COMPUTED


def query(world: World, statement: str) -> list[tuple[Any, ...]]:
    """
    Ask the list of what was injected.
    """
    return world.truth.execute(statement).fetchall()
