"""
Measure what a verdict costs: by bit blocks, by a window over every message, by a group for every message; Spark, DuckDB, Polars.

::

    python -m tests.benchmarks.audit [--events 20000000] [--growth 3] [--rounds 3] [--logs FOLDER] [--json]

Every formulation answers the same (different messages, lost ones, copies too many) and is checked against what was put into
the log. Each round runs all of them in turn in one session, after a round over an eighth of the log that is thrown away;
ratios are taken in each round and their median counts. Seconds are wall-clock; CPU seconds, shuffled and spilled bytes are
Spark's own, from its event log. A further session with a heap of 1 GB reduces the whole log to state as the daily job does,
answers from it, and must find each fault that was put in, to the message, and nothing else. Nothing is asserted of time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.audit.world import make

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Answer = tuple[int, int, int]
_DROPPED = "verdict = 'duplicate' AND NOT forwarded AND reason = ''"
_TRACKED = "publisher IS NOT NULL AND sequence IS NOT NULL AND verdict IN ('new', 'duplicate', 'too-old', 'unadmitted')"
_BY_MESSAGE = f"""
    SELECT count(*) AS messages, count(CASE WHEN d AND NOT s THEN 1 END) AS lost, sum(greatest(f - 1, 0)) AS doubled FROM (
        SELECT bool_or({_DROPPED}) AS d, bool_or(NOT ({_DROPPED})) AS s, count(CASE WHEN forwarded AND NOT marked THEN 1 END) AS f
        FROM events WHERE {_TRACKED} GROUP BY queue, publisher, sequence)"""
_BY_WINDOW = f"""
    SELECT count(CASE WHEN n = 1 THEN 1 END) AS messages, count(CASE WHEN n = 1 AND d AND NOT s THEN 1 END) AS lost,
        count(CASE WHEN forwarded AND NOT marked AND f > 1 THEN 1 END) AS doubled FROM (
        SELECT forwarded, marked, row_number() OVER w AS n,
            count(CASE WHEN forwarded AND NOT marked THEN 1 END) OVER w AS f,
            max({_DROPPED}) OVER m AS d, max(NOT ({_DROPPED})) OVER m AS s
        FROM events WHERE {_TRACKED}
        WINDOW m AS (PARTITION BY queue, publisher, sequence),
            w AS (PARTITION BY queue, publisher, sequence ORDER BY token, `offset`
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW))"""
_BY_BLOCKS = f"""
    SELECT sum(bit_count(a)) AS messages, sum(bit_count(d & ~s)) AS lost, sum(n - bit_count(f)) AS doubled FROM (
        SELECT bit_or(b) AS a, bit_or(CASE WHEN {_DROPPED} THEN b ELSE 0 END) AS d,
            bit_or(CASE WHEN {_DROPPED} THEN 0 ELSE b END) AS s,
            bit_or(CASE WHEN forwarded AND NOT marked THEN b ELSE 0 END) AS f,
            count(CASE WHEN forwarded AND NOT marked THEN 1 END) AS n
        FROM (SELECT *, (1::BIGINT << (sequence & 31)::INT)::BIGINT AS b FROM events WHERE {_TRACKED})
        GROUP BY queue, publisher, sequence >> 5)"""


def main() -> None:
    """
    Make the logs, run the sessions one after the other, print the table.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0].strip())
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--publishers", type=int, default=2_000)
    parser.add_argument(
        "--growth", type=int, default=3, help="how many times as large the larger log is; 1: none"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logs", type=Path, help="folder to keep the logs in, and to find them again")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--session", choices=("spark", "small", "engines"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.session:
        run = {"spark": _spark, "small": _small_heap, "engines": _engines}[options.session]
        print(json.dumps(run(options)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.logs or Path(scratch)
        if not (folder / "1/truth.json").exists():
            _make(folder / "1", options.events, options.publishers)
        if not (folder / str(options.growth) / "truth.json").exists():
            _grow(folder / "1", folder / str(options.growth), options.growth)
        found = {name: _run(name, folder, options) for name in ("spark", "small", "engines")}
        truth = json.loads((folder / "1/truth.json").read_text())
    if options.json:
        print(json.dumps({"truth": truth, **found}))
    else:
        _print(truth, found, options.growth)


def _make(folder: Path, events: int, publishers: int) -> None:
    """
    Write one log and what a verdict on it must say.
    """
    print(f"making a log of {events:,} arrivals ...", file=sys.stderr, flush=True)
    world = make(folder / "events", events=events, publishers=publishers, damaged=False)
    # Unproven drops have no stored copy either: the plain formulations cannot tell them from losses.
    ((messages, lost, doubled),) = world.truth.execute(f"""
        SELECT (SELECT count(*) FROM (SELECT DISTINCT queue, publisher, sequence FROM events WHERE {_TRACKED})),
            (SELECT count(*) FROM injected WHERE kind IN ('lost', 'unproven')),
            (SELECT count(*) FROM injected WHERE kind = 'escaped') - (SELECT count(*) FROM (
                SELECT 1 FROM events WHERE {_TRACKED} AND forwarded GROUP BY queue, publisher, sequence
                HAVING count(*) = 2 AND bool_or(marked) AND NOT bool_and(marked) AND arg_min(marked, row(token, "offset"))))
        """).fetchall()
    columns = 'kind, queue, publisher, sequence, token, "offset"'
    world.truth.execute(f"COPY (SELECT {columns} FROM injected) TO '{folder}/injected.parquet'")
    (folder / "truth.json").write_text(
        json.dumps({"events": world.events, "answer": [messages, lost, doubled]})
    )


def _grow(small: Path, large: Path, factor: int) -> None:
    """
    Make a log *factor* times as large of the same files, linked below further queues.
    """
    for file in small.glob("events/*/*/*.parquet"):
        for number in range(factor):
            link = large / "events" / file.parents[1].name / f"{file.parent.name}-{number}" / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.hardlink_to(file)
    truth = json.loads((small / "truth.json").read_text())
    (large / "truth.json").write_text(
        json.dumps({"events": truth["events"] * factor, "answer": [n * factor for n in truth["answer"]]})
    )


def _run(name: str, folder: Path, options: argparse.Namespace) -> Any:
    """
    Run one session in a process of its own and return what it measured.
    """
    print(f"session {name} ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "tests.benchmarks.audit", "--session", name, "--logs", str(folder)]
    command += ["--growth", str(options.growth), "--rounds", str(options.rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# -- Spark ----------------------------------------------------------------------------------------


def _blocks(events: DataFrame) -> Answer:
    """
    Answer with the functions of the product.
    """
    from pyspark.sql import functions as F  # noqa: N812

    from dedup.audit.cells import blocks, cells

    row = (
        blocks(cells(events))
        .agg(
            F.sum(F.expr("bit_count(forwarded_mask | dropped_mask | quarantined_mask)")),
            F.sum(F.expr("bit_count(dropped_mask & ~(forwarded_mask | quarantined_mask))")),
            F.sum(F.expr("forwarded - marked - bit_count(unmarked_mask)")),
        )
        .collect()[0]
    )
    return row[0], row[1], row[2]


def _sql(statement: str) -> Callable[[DataFrame], Answer]:
    """
    Answer with a statement about the view `events`.
    """

    def answer(events: DataFrame) -> Answer:
        events.createOrReplaceTempView("events")
        row = events.sparkSession.sql(statement).collect()[0]
        return row[0], row[1], row[2]

    return answer


#: "blocks" is the product, whose cells also hold what rates and causes need; "masks" answers no more than the other two.
_FORMULATIONS = {
    "blocks": _blocks,
    "masks": _sql(_BY_BLOCKS),
    "window": _sql(_BY_WINDOW),
    "groups": _sql(_BY_MESSAGE),
}


def _session(memory: str, log: str) -> SparkSession:
    """
    Start Spark with a heap of *memory* and an event log in the folder *log*.
    """
    from pyspark.sql import SparkSession

    from dedup.audit import session

    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{log}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    SparkSession.builder.config(map=settings).getOrCreate().sparkContext.setLogLevel("ERROR")
    return session()


def _spark(options: argparse.Namespace) -> dict[str, Any]:
    """
    Run all formulations on the log, and blocks on the larger one, in turn.
    """
    from dedup.audit.storage import read_events

    folder, growth, rounds = options.logs, options.growth, options.rounds
    runs: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as log:
        spark = _session("4g", log)
        tasks = [(name, answer, "1") for name, answer in _FORMULATIONS.items()]
        if growth > 1:
            tasks.append((f"blocks x{growth}", _blocks, str(growth)))
        for number in range(rounds + 1):
            for name, answer, size in tasks:
                wanted = json.loads((folder / size / "truth.json").read_text())["answer"]
                spark.sparkContext.setJobGroup(name if number else "warm-up", name)
                part = () if number else ("queue-0", "queue-0-0")
                begun = time.perf_counter()
                found = answer(read_events(spark, str(folder / size / "events"), queues=part))
                took = time.perf_counter() - begun
                print(f"round {number}: {name:10} {took:7.1f} s", file=sys.stderr, flush=True)
                if number:
                    assert list(found) == wanted, (name, found, wanted)
                    runs[name].append(took)
        spark.stop()
        return {"seconds": runs, "costs": _costs(log, rounds)}


def _small_heap(options: argparse.Namespace) -> dict[str, Any]:
    """
    Reduce the log to state in a heap of 1 GB, and answer from it.
    """
    from dedup.audit import daily, results
    from dedup.audit.schema import FINDINGS

    events = str(options.logs / "1/events")
    with tempfile.TemporaryDirectory() as log, tempfile.TemporaryDirectory() as state:
        spark = _session("1g", log)
        spark.sparkContext.setJobGroup("daily", "daily")
        begun = time.perf_counter()
        daily(spark, events, state)
        reduced = time.perf_counter()
        spark.sparkContext.setJobGroup("report", "report")
        found = results(spark, events, state)[FINDINGS].select(*FINDINGS.key_names).collect()
        answered = time.perf_counter()
        injected = spark.read.parquet(str(options.logs / "1/injected.parquet")).collect()
        spark.stop()
        assert sorted(found) == sorted(injected), (len(found), len(injected))
        kept = sum(file.stat().st_size for file in Path(state).rglob("*.parquet"))
        return {
            "daily_s": reduced - begun,
            "findings_s": answered - reduced,
            "findings": len(found),
            "state_bytes": kept,
            "costs": _costs(log, 1),
        }


def _costs(log: str, rounds: int) -> dict[str, dict[str, float]]:
    """
    Add up what Spark's event log says of each job group, for one round.
    """
    groups: dict[int, str] = {}
    costs: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for file in Path(log).iterdir():
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerJobStart":
                group = event["Properties"].get("spark.jobGroup.id", "")
                groups.update(dict.fromkeys(event["Stage IDs"], group))
            if event["Event"] == "SparkListenerTaskEnd" and "Task Metrics" in event:
                measured, cost = event["Task Metrics"], costs[groups[event["Stage ID"]]]
                cost["cpu_s"] += measured["Executor CPU Time"] / 1e9 / rounds
                cost["shuffle_mb"] += (
                    measured["Shuffle Write Metrics"]["Shuffle Bytes Written"] / 1e6 / rounds
                )
                cost["spilled_mb"] += measured["Disk Bytes Spilled"] / 1e6 / rounds
                cost["peak_mb"] = max(cost["peak_mb"], measured["Peak Execution Memory"] / 1e6)
    return costs


# -- other engines --------------------------------------------------------------------------------


def _engines(options: argparse.Namespace) -> dict[str, list[float]]:
    """
    Ask DuckDB and Polars the same of the same files, in turn.
    """
    import duckdb
    import polars as pl

    folder, rounds = options.logs, options.rounds
    files = f"{folder}/1/events/*/*/*.parquet"
    wanted = json.loads((folder / "1/truth.json").read_text())["answer"]

    def in_duckdb(statement: str) -> Answer:
        with duckdb.connect() as database:
            database.execute(
                f"CREATE VIEW events AS SELECT * FROM read_parquet('{files}', hive_partitioning = true)"
            )
            ((messages, lost, doubled),) = database.execute(statement).fetchall()
            return int(messages), int(lost), int(doubled)

    def in_polars() -> Answer:
        column = pl.col
        drop = (column("verdict") == "duplicate") & ~column("forwarded") & (column("reason") == "")
        once = column("forwarded") & ~column("marked")
        messages = (
            pl.scan_parquet(files, hive_partitioning=True)
            .filter(
                column("publisher").is_not_null()
                & column("sequence").is_not_null()
                & column("verdict").is_in(["new", "duplicate", "too-old", "unadmitted"])
            )
            .group_by("queue", "publisher", "sequence")
            .agg(drop.any().alias("d"), (~drop).any().alias("s"), once.sum().alias("f"))
        )
        doubled = (column("f").cast(pl.Int64) - 1).clip(0).sum()
        row = messages.select(pl.len(), (column("d") & ~column("s")).sum().alias("l"), doubled.alias("f"))
        found = row.collect(engine="streaming").row(0)
        return int(found[0]), int(found[1]), int(found[2])

    tasks: dict[str, Callable[[], Answer]] = {
        "DuckDB, blocks": lambda: in_duckdb(_BY_BLOCKS),
        "DuckDB, groups": lambda: in_duckdb(_BY_MESSAGE),
        "Polars, groups": in_polars,
    }
    runs: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, answer in tasks.items():
            begun = time.perf_counter()
            found = answer()
            took = time.perf_counter() - begun
            assert list(found) == wanted, (name, found, wanted)
            if number:
                runs[name].append(took)
    return runs


# -- results --------------------------------------------------------------------------------------


def _print(truth: dict[str, Any], found: dict[str, Any], growth: int) -> None:
    """
    Print medians and ratios.
    """
    spark, small = found["spark"], found["small"]
    print(
        f"{truth['events']:,} arrivals; messages, lost, too many: {truth['answer']}, the same from every formulation"
    )
    print("Spark                 s   ratio   CPU s   ratio   shuffle MB   spilled MB   peak MB")
    base = spark["seconds"]["blocks"]
    for name, seconds in spark["seconds"].items():
        ratio = statistics.median(a / b for a, b in zip(seconds, base, strict=True))
        cost, least = spark["costs"][name], spark["costs"]["blocks"]
        print(
            f"{name:14} {statistics.median(seconds):8.1f} {ratio:7.2f} {cost['cpu_s']:7.1f} {cost['cpu_s'] / least['cpu_s']:7.2f} "
            f"{cost['shuffle_mb']:12.1f} {cost['spilled_mb']:12.1f} {cost['peak_mb']:9.0f}"
        )
    if growth > 1:
        print(f"growth: {growth} times the arrivals cost the factor of the last line; linear is {growth}")
    cost = small["costs"]
    print(
        f"heap of 1 GB: daily job {small['daily_s']:.1f} s cold, {cost['daily']['cpu_s']:.1f} CPU s, spilled "
        f"{cost['daily']['spilled_mb']:.1f} MB; state {small['state_bytes'] / 1e6:.1f} MB "
        f"({small['state_bytes'] / truth['events']:.2f} bytes an arrival)"
    )
    print(
        f"findings from it {small['findings_s']:.1f} s, {cost['report']['cpu_s']:.1f} CPU s, spilled "
        f"{cost['report']['spilled_mb']:.1f} MB: all {small['findings']:,} faults that were put in, and nothing else"
    )
    for name, seconds in found["engines"].items():
        middle = statistics.median(seconds)
        print(
            f"{name:14} {middle:8.1f} s; Spark's blocks take {statistics.median(base) / middle:.1f} times as long"
        )


if __name__ == "__main__":
    main()
