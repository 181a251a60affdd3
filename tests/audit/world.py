"""
Make an event log with known faults in it, of any size, and the list of what was injected.

::

    python -m tests.audit.world FOLDER --events 20_000_000 --publishers 2_000

Publishers differ in rate, in where their numbers begin (1, a multiple of 2^32, a fraction of a second, just below 2^63) and in
how often they begin a new range. Each message is of one kind; a kind is a list of copies with what the shim made of each. The
truth is what was put in: nothing here looks at masks, blocks or windows.
"""

from __future__ import annotations

import argparse
import datetime as dt
from pathlib import Path

import duckdb
from attrs import frozen

#: Kind: share of messages in millionths, and its copies: verdict, reason, attempt, marked, forwarded, what the audit must say.
_FORWARDED = ("new", "", 1, False, True, None)
KINDS = {
    "retried": (30_000, (_FORWARDED, ("duplicate", "", 2, False, False, None))),
    "retried twice": (
        1_000,
        (_FORWARDED, ("duplicate", "", 2, False, False, None), ("duplicate", "", 3, False, False, None)),
    ),
    "redelivered": (300, (_FORWARDED, ("duplicate", "", 1, False, False, None))),
    "overtaken": (300, (("new", "", 2, False, True, None), ("duplicate", "", 1, False, False, None))),
    "parked": (50, (_FORWARDED, ("duplicate", "duplicate", 2, False, False, None))),
    "marked": (100, (("new", "", 1, True, True, None),)),
    "marked copy": (50, (_FORWARDED, ("new", "", 2, True, True, None))),
    "refused": (
        30,
        (("new", "refused-by-broker", 1, False, False, None), ("duplicate", "", 2, False, False, None)),
    ),
    "too old": (50, (("too-old", "too-old", 2, False, False, None),)),
    "unadmitted": (20, (("unadmitted", "unadmitted", 1, False, False, None),)),
    "returned": (100, (_FORWARDED, ("returning", "", 1, False, True, None))),
    "returned, marked": (20, (_FORWARDED, ("returning", "", 1, True, True, None))),
    "returned, copied": (
        20,
        (_FORWARDED, ("returning", "", 1, False, True, None), ("returning", "", 1, False, False, None)),
    ),
    "gap": (50, ()),
    "unstamped": (100, (_FORWARDED, ("untracked", "", 1, False, True, None))),
    "malformed": (50, (_FORWARDED, ("malformed", "sequence-kind", 1, False, False, None))),
    "older owner": (30, (_FORWARDED, ("too-old", "too-old", 1, False, False, None))),
    "lost": (20, (("duplicate", "", 1, False, False, "lost"),)),
    "lost, retried": (
        20,
        (("duplicate", "", 1, False, False, "lost"), ("duplicate", "", 2, False, False, None)),
    ),
    "repaired": (20, (("duplicate", "", 1, False, False, "false-drop"), ("new", "", 2, False, True, None))),
    "repaired, retried": (
        20,
        (
            ("duplicate", "", 1, False, False, "false-drop"),
            ("new", "", 2, False, True, None),
            ("duplicate", "", 3, False, False, None),
        ),
    ),
    "escaped": (20, (_FORWARDED, ("new", "", 2, False, True, "escaped"))),
    "escaped twice": (
        20,
        (_FORWARDED, ("new", "", 2, False, True, "escaped"), ("new", "", 3, False, True, "escaped")),
    ),
    "escaped after a mark": (
        20,
        (("new", "", 1, True, True, None), ("new", "", 2, False, True, "escaped")),
    ),
}
#: Nothing is injected so near to the ends of a publisher's ranges.
_MARGIN = 12
_MESSAGES_MIN = 12 * _MARGIN
_BATCH = 97
_SPAN_US = 86_400_000_000
#: Arrivals of each relay that are cut out of the log of the damaged queue: in the middle; and so many off the end of the first.
HOLE = (101, 163)
END_CUT = 150


@frozen
class World:
    """
    An event log on disk, and what is wrong with it.
    """

    #: Folder of the log.
    path: Path
    #: Database with the tables `events` (as written, without repeated records), `injected` (kind, queue, publisher, sequence,
    #: token, offset) and `publishers`.
    truth: duckdb.DuckDBPyConnection
    events: int


def make(
    path: Path,
    *,
    events: int,
    publishers: int,
    queues: int = 8,
    seed: int = 1,
    damaged: bool = True,
    boost: int = 1,
) -> World:
    """
    Write a log of about *events* arrivals in two days below *path*.

    Args:
        boost: How many times as often the rare kinds are, for small logs.
        damaged: Add a queue `damaged` whose log has holes, and write some records of queue `queue-1` twice.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    database = duckdb.connect()
    database.execute("SET preserve_insertion_order = false; SET TimeZone = 'UTC'; SET memory_limit = '8GB'")
    _publishers(database, events, publishers, queues, damaged=damaged)
    _copies(database, seed, boost)
    _judge(database)
    if damaged:
        _damage(database)
    database.execute(
        'CREATE TABLE injected AS SELECT finding AS kind, queue, publisher, sequence, token, "offset" FROM judged '
        "WHERE finding IS NOT NULL"
    )
    columns = (
        'queue, token, "offset", batch, make_timestamptz(at_us) AS arrived_at, before_token, before_offset, redelivered, publisher, sequence, attempt::INTEGER AS attempt, '
        "make_timestamptz(first_us) AS first_sent_at, verdict, reason, depth, marked, forwarded, bytes, "
        "make_timestamptz(at_us)::DATE AS date"
    )
    database.execute(f"CREATE VIEW events AS SELECT {columns} FROM judged")
    repeated = f"SELECT {columns} FROM judged WHERE queue = 'queue-1' AND batch % 50 = 7" if damaged else ""
    for number, query in enumerate(filter(None, ("SELECT * FROM events", repeated))):
        database.execute(
            f"COPY ({query} ORDER BY queue, token, \"offset\") TO '{path}' (FORMAT parquet, COMPRESSION zstd, "
            f"PARTITION_BY (date, queue), FILENAME_PATTERN 'part-{number}-{{i}}', OVERWRITE_OR_IGNORE)"
        )
    ((count,),) = database.execute("SELECT count(*) FROM judged").fetchall()
    return World(path, database, count)


def _publishers(
    database: duckdb.DuckDBPyConnection, events: int, publishers: int, queues: int, *, damaged: bool
) -> None:
    """
    Decide who publishes how much, and from which numbers on.
    """
    database.execute(f"""
        CREATE TABLE publishers AS
        WITH weighed AS (SELECT p, pow(1 + p, -0.7) AS weight FROM range({publishers}) AS t(p)),
        counted AS (
            SELECT p, 'queue-' || p % {queues} AS queue, 'publisher-' || p AS publisher,
                greatest({_MESSAGES_MIN}, ({events} / 1.035 * weight / sum(weight) OVER ())::BIGINT) AS messages
            FROM weighed
            UNION ALL
            SELECT {publishers} + p, 'damaged', 'publisher-' || p, 200 FROM range({10 * damaged}) AS t(p))
        SELECT *, CASE WHEN p % 3 = 0 AND p % 4 <> 3 THEN messages // 2 ELSE messages END AS first_range,
            CASE p % 4
                WHEN 0 THEN 0::BIGINT                                            -- from 1
                WHEN 1 THEN (50_000_000 + p)::BIGINT << 32                       -- a multiple of 2^32
                WHEN 2 THEN (((60_000_000 + p)::BIGINT + 1) << 32) - (p % 5) * 40  -- a fraction; some go over the second
                ELSE 9223372036854775807 - messages                              -- the last one is 2^63 - 1
            END AS base,
            p % 5 = 4 AND p % 4 IN (1, 2) AND queue <> 'damaged' AS known_before
        FROM counted""")


def _copies(database: duckdb.DuckDBPyConnection, seed: int, boost: int) -> None:
    """
    Give each message its kind and each copy its time.
    """
    bounds, reached = [], 0
    rows = ["('plain', 0, 'new', '', 1, false, true, NULL)"]
    for kind, (share, copies) in KINDS.items():
        reached += share * (1 if kind == "retried" else boost)
        bounds.append(f"WHEN luck < {reached} THEN '{kind}'")
        for number, (verdict, reason, attempt, marked, forwarded, finding) in enumerate(copies):
            told = f"'{finding}'" if finding else "NULL"
            rows.append(
                f"('{kind}', {number}, '{verdict}', '{reason}', {attempt}, {marked}, {forwarded}, {told})"
            )
    database.execute(f"""
        CREATE TABLE copies AS SELECT * FROM (VALUES {", ".join(rows)})
        AS t(kind, copy, verdict, reason, attempt, marked, forwarded, finding);
        CREATE TABLE messages AS
        WITH numbered AS (
            SELECT *, unnest(generate_series(1::BIGINT, messages)) AS i FROM publishers),
        lucky AS (SELECT *, hash({seed}, p, i) % 1_000_000 AS luck, hash(i, p, {seed}) % 1_000_000 / 1e6 AS phase FROM numbered)
        SELECT p, i, queue, publisher, i > first_range AS renewed,
            CASE WHEN i > first_range THEN base + (86_400::BIGINT << 32) + i - first_range ELSE base + i END AS sequence,
            1_767_250_800_000_000 + ((i + phase * 0.9) / messages * {_SPAN_US})::BIGINT AS sent_us,
            (200_000 * exp(3 * (phase - 0.5)) * (1 + hash(p, i) % 50))::BIGINT AS delay_us,
            CASE WHEN queue = 'damaged' OR i <= {_MARGIN} OR i > messages - {_MARGIN}
                OR abs(i - first_range) < {_MARGIN} THEN 'plain' {" ".join(bounds)} ELSE 'plain' END AS kind
        FROM lucky""")


def _judge(database: duckdb.DuckDBPyConnection) -> None:
    """
    Put all copies in the order of their arrival and number them, as relays do.
    """
    database.execute(f"""
        CREATE TABLE arrivals AS
        SELECT queue, p, i, copy, finding, verdict, reason, attempt, marked, forwarded,
            CASE WHEN verdict = 'untracked' THEN NULL ELSE publisher END AS publisher,
            CASE WHEN verdict IN ('untracked', 'malformed') THEN NULL
                WHEN kind = 'older owner' AND copy = 1 THEN sequence - (1::BIGINT << 33) ELSE sequence END AS sequence,
            sent_us + copy * delay_us AS at_us,
            CASE WHEN attempt > 1 THEN sent_us - 1_000 END AS first_us,
            100 + i % 400 AS bytes
        FROM (SELECT messages.* REPLACE (
                -- Somebody below 2^33 has no older owner.
                CASE WHEN kind = 'older owner' AND sequence < (1::BIGINT << 33) THEN 'plain' ELSE kind END AS kind)
            FROM messages) JOIN copies USING (kind)
        UNION ALL
        SELECT queue, p, 0, 0, 'unproven', 'duplicate', '', 2, false, false, publisher, base,
            1_767_250_800_000_000 + p, 1_767_250_700_000_000, 100
        FROM publishers WHERE known_before;
        DROP TABLE messages;
        CREATE TABLE numbered AS
        SELECT *, row_number() OVER (PARTITION BY queue, token ORDER BY at_us, p, i, copy) AS "offset"
        FROM (SELECT *, 1_767_250_000_000 + ((at_us - 1_767_250_800_000_000) // {_SPAN_US // 3}) * 10_000_000 AS token
            FROM arrivals);
        DROP TABLE arrivals;
        CREATE TABLE judged AS
        WITH relays AS (
            SELECT queue, token, (max("offset") + {_BATCH - 1}) // {_BATCH} AS batches, max("offset") AS ended
            FROM numbered GROUP BY ALL),
        begun AS (
            SELECT queue, token, coalesce(sum(batches) OVER (PARTITION BY queue ORDER BY token
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::BIGINT AS batches_before,
                lag(token) OVER relay AS token_before, lag(ended) OVER relay AS ended_before
            FROM relays WINDOW relay AS (PARTITION BY queue ORDER BY token)),
        followed AS (
            SELECT *, max(CASE WHEN verdict = 'new' THEN sequence END) OVER (PARTITION BY queue, publisher ORDER BY token, "offset"
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS last
            FROM numbered)
        SELECT followed.* EXCLUDE (last), batches_before + ("offset" - 1) // {_BATCH} + 1 AS batch,
            copy > 0 AND attempt = 1 AS redelivered,
            CASE WHEN "offset" > {_BATCH} THEN token ELSE coalesce(token_before, 0) END AS before_token,
            CASE WHEN "offset" > {_BATCH} THEN ("offset" - 1) // {_BATCH} * {_BATCH} ELSE coalesce(ended_before, 0) END
                AS before_offset,
            CASE WHEN verdict NOT IN ('returning', 'untracked', 'malformed', 'unadmitted')
                THEN coalesce(last, CASE WHEN known_before THEN base END) - sequence END AS depth
        FROM followed JOIN begun USING (queue, token) JOIN publishers USING (p, queue);
        DROP TABLE numbered""")


def _damage(database: duckdb.DuckDBPyConnection) -> None:
    """
    Cut a hole into each relay's records of the damaged queue, and the end off the first one's.
    """
    first, last = HOLE
    database.execute(f"""
        CREATE TABLE cut AS SELECT token, max("offset") AS ended FROM judged WHERE queue = 'damaged' GROUP BY token;
        DELETE FROM judged WHERE queue = 'damaged' AND "offset" BETWEEN {first} AND {last};
        DELETE FROM judged WHERE queue = 'damaged' AND token = (SELECT min(token) FROM cut)
            AND "offset" > (SELECT ended FROM cut ORDER BY token LIMIT 1) - {END_CUT}""")


def main() -> None:
    """
    Write a log from the command line.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0].strip())
    parser.add_argument("path", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--publishers", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    world = make(options.path, events=options.events, publishers=options.publishers, seed=options.seed)
    print(f"{dt.datetime.now(dt.UTC):%H:%M:%S} {world.events:,} arrivals in {world.path}")


if __name__ == "__main__":
    main()
