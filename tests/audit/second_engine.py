"""
Compute the audit's tables in DuckDB, and in the obvious way: group and order every copy of every message.

No masks, no blocks, no state: what is slow in large logs and easy to believe.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from dedup.audit.schema import CAUSES, FINDINGS, HISTOGRAMS, LOG_GAPS, RATES, VERDICT, Table
from dedup.audit.verdict import JUMP_MIN
from dedup.core.event_log import Kind
from tests.audit.tables import in_order

_VIEWS = f"""
CREATE TABLE once AS
    SELECT DISTINCT ON (queue, token, "offset") *,
        coalesce(publisher IS NOT NULL AND sequence IS NOT NULL
            AND verdict IN ('new', 'duplicate', 'too-old', 'unadmitted'), false) AS tracked,
        verdict = 'duplicate' AND NOT forwarded AND reason = '' AS dropped
    FROM log;
CREATE TABLE copies AS
    SELECT *, row(token, "offset") AS place,
        count(*) FILTER (forwarded) OVER before AS forwards_before,
        count(*) FILTER (dropped) OVER before AS drops_before,
        count(*) FILTER (NOT dropped) OVER before AS stores_before,
        count(*) FILTER (NOT dropped) OVER message AS stores,
        count(*) OVER message AS copies,
        min(CASE WHEN NOT dropped THEN row(token, "offset") END) OVER message AS stored
    FROM once WHERE tracked
    WINDOW message AS (PARTITION BY queue, publisher, sequence),
        before AS (PARTITION BY queue, publisher, sequence ORDER BY token, "offset"
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING);
-- What the publisher had reached is what its first arrival was compared with.
CREATE TABLE known AS
    SELECT queue, publisher, coalesce(arg_min(coalesce(sequence + depth, 0), row(token, "offset")), 0) AS known
    FROM once WHERE tracked AND (depth IS NOT NULL OR verdict = 'new') GROUP BY ALL;
CREATE TABLE findings AS
    SELECT * FROM (
        SELECT CASE
                WHEN forwarded AND NOT marked AND forwards_before > 0 THEN 'escaped'
                WHEN NOT dropped OR drops_before > 0 OR stores_before > 0 THEN NULL
                WHEN sequence <= coalesce(known, 0) THEN 'unproven'
                WHEN stores = 0 THEN 'lost'
                ELSE 'false-drop' END AS kind,
            queue, publisher, sequence, token, "offset", batch, arrived_at, stored[1] AS stored_token,
            stored[2] AS stored_offset, copies
        FROM copies LEFT JOIN known USING (queue, publisher))
    WHERE kind IS NOT NULL;
CREATE TABLE steps AS
    SELECT queue, token, "offset", lag("offset") OVER (PARTITION BY queue, token ORDER BY "offset") AS before,
        min(token) OVER (PARTITION BY queue) AS oldest FROM once;
CREATE TABLE named AS
    SELECT queue, before_token AS token, max(before_offset) AS named, any_value(oldest) AS oldest
    FROM once JOIN (SELECT queue, min(token) AS oldest FROM once GROUP BY queue) USING (queue)
    WHERE before_token <> token AND before_token >= oldest GROUP BY queue, before_token;
CREATE TABLE ends AS
    SELECT queue, token, named, coalesce((SELECT max("offset") FROM once
        WHERE once.queue = named.queue AND once.token = named.token), 0) AS last FROM named;
CREATE TABLE log_gaps AS
    SELECT queue, CASE WHEN before IS NULL AND token = oldest THEN 'beginning' ELSE 'offsets' END AS kind, token,
        coalesce(before, 0) + 1 AS first, "offset" - 1 AS last, last - first + 1 AS missing
    FROM steps WHERE "offset" > coalesce(before, 0) + 1
    UNION ALL SELECT queue, 'end', token, last + 1, named, named - last FROM ends WHERE named > last;
CREATE TABLE messages AS
    SELECT *, sequence - lag(sequence) OVER (PARTITION BY queue, publisher ORDER BY sequence) - 1 AS left_out
    FROM (SELECT queue, publisher, sequence, bool_or(forwarded) AS f, bool_or(NOT forwarded AND NOT dropped) AS q,
        bool_or(dropped) AS d FROM copies GROUP BY ALL);
CREATE TABLE verdict AS
    WITH counted AS (
        SELECT queue, publisher, count(*) AS tracked, count(*) FILTER (forwarded) AS forwarded,
            count(*) FILTER (forwarded AND marked) AS marked, count(*) FILTER (dropped) AS dropped FROM copies GROUP BY ALL),
    summed AS (
        SELECT queue, publisher, count(*) AS messages, count(*) FILTER (q AND NOT f) AS quarantined_only,
            coalesce(sum(left_out) FILTER (left_out <= {JUMP_MIN}), 0) AS missing,
            count(*) FILTER (left_out > {JUMP_MIN}) AS jumps FROM messages GROUP BY ALL),
    found AS (
        SELECT queue, publisher, count(*) FILTER (kind = 'lost') AS lost, count(*) FILTER (kind = 'false-drop') AS false_drops,
            count(*) FILTER (kind = 'escaped') AS escaped, count(*) FILTER (kind = 'unproven') AS unproven
        FROM findings GROUP BY ALL),
    holes AS (SELECT queue, count(*) AS holes FROM log_gaps WHERE kind <> 'beginning' GROUP BY queue)
    SELECT queue, publisher, tracked, messages, tracked - messages AS duplicates, forwarded, marked, dropped, quarantined_only,
        coalesce(lost, 0) AS lost, coalesce(false_drops, 0) AS false_drops, coalesce(escaped, 0) AS escaped,
        coalesce(unproven, 0) AS unproven, missing, jumps,
        holes IS NULL AS log_complete,
        CASE WHEN coalesce(escaped, 0) > 0 THEN 'convicted' WHEN holes > 0 THEN 'incomplete'
            WHEN coalesce(lost, 0) + coalesce(false_drops, 0) > 0 THEN 'convicted'
            WHEN coalesce(unproven, 0) > 0 THEN 'unproven' ELSE 'clean' END AS verdict
    FROM counted JOIN summed USING (queue, publisher) LEFT JOIN found USING (queue, publisher) LEFT JOIN holes USING (queue);
CREATE TABLE rates AS
    SELECT date, date_trunc('hour', arrived_at) AS hour, queue, publisher, count(*) AS events, sum(bytes) AS bytes,
        count(*) FILTER (verdict = 'duplicate') AS duplicates,
        count(*) FILTER (verdict = 'duplicate' AND attempt > 1) AS resent,
        count(*) FILTER (verdict = 'too-old') AS too_old,
        count(*) FILTER (verdict = 'too-old' AND (sequence + depth) // 4294967296 > sequence // 4294967296) AS second_owner,
        count(*) FILTER (verdict = 'untracked') AS untracked, count(*) FILTER (verdict = 'malformed') AS malformed,
        count(*) FILTER (verdict = 'unadmitted') AS unadmitted, count(*) FILTER (verdict = 'returning') AS returning,
        count(*) FILTER (tracked) AS tracked, count(*) FILTER (tracked AND forwarded) AS forwarded,
        count(*) FILTER (tracked AND forwarded AND marked) AS marked, count(*) FILTER (tracked AND dropped) AS dropped,
        count(*) FILTER (verdict = 'duplicate') / count(*) AS duplicate_share
    FROM once GROUP BY date, hour, queue, publisher;
CREATE TABLE causes AS
    SELECT date, queue, publisher, CASE verdict
            WHEN 'returning' THEN 'dead-letter'
            WHEN 'duplicate' THEN CASE WHEN attempt > 1 THEN 'publisher-retry'
                WHEN publisher IS NULL THEN 'same-message-id' ELSE 'broker-redelivery' END
            WHEN 'too-old' THEN CASE WHEN (sequence + depth) // 4294967296 > sequence // 4294967296
                THEN 'second-owner' ELSE 'late' END END AS cause, count(*) AS events
    FROM once WHERE verdict IN ('returning', 'duplicate', 'too-old') GROUP BY ALL;
CREATE TABLE histograms AS
    WITH measured AS (
        SELECT date, queue, 'retry-latency' AS measure, verdict, epoch_us(arrived_at) - epoch_us(first_sent_at) AS value
        FROM once WHERE attempt > 1 AND first_sent_at IS NOT NULL
        UNION ALL SELECT date, queue, 'window-depth', verdict, depth FROM once WHERE depth >= 0),
    cut AS (
        SELECT *, CASE WHEN value < 8 THEN 1 ELSE 1::BIGINT << (length(bin(value)) - 3) END AS width FROM measured)
    SELECT date, queue, measure, verdict, CASE WHEN value < 0 THEN -1 ELSE value // width * width END AS low,
        CASE WHEN value < 0 THEN -1 ELSE low + (width - 1) END AS high, count(*) AS events FROM cut GROUP BY ALL
"""
COMPUTED = (LOG_GAPS, RATES, CAUSES, HISTOGRAMS, VERDICT, FINDINGS)


def compute(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """
    Read the log below *path* and return the rows of each table of `COMPUTED`, as `tables.rows` does.
    """
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
        database.execute(
            f"CREATE VIEW log AS SELECT * FROM read_parquet('{path}/*/*/*.parquet', hive_partitioning = true)"
        )
        database.execute(_VIEWS)
        return {table.name: _rows(database, table) for table in COMPUTED}


def _rows(database: duckdb.DuckDBPyConnection, table: Table) -> list[tuple[Any, ...]]:
    """
    Return the rows of one table in the order and the form of its columns.
    """
    shown = {Kind.TIMESTAMP: 'epoch_us("{}")', Kind.DATE: '"{}"::VARCHAR', Kind.LONG: '"{}"::BIGINT'}
    columns = ", ".join(shown.get(c.kind, '"{}"').format(c.name) for c in table.columns)
    return in_order(database.execute(f"SELECT {columns} FROM {table.name}").fetchall())
