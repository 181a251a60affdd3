"""Put messages into an outbox inside the application's own transaction."""

from __future__ import annotations

from typing import Any, ClassVar

from dedup.amqp091.publishing import AMQP091, Properties
from dedup.core import inputs
from dedup.outbox.dialects import POSTGRESQL, recognise
from dedup.outbox.formats import agree
from dedup.wire import Wire

#: What a current RabbitMQ takes by default.
BODY_BYTES_MAX = 16 * 1024 * 1024


class Outbox:
    """
    The transactional outbox: a message is committed with the business data it tells of, or not at all.

    A connection is one of :mod:`sqlite3` or psycopg 3, or what SQLAlchemy wraps around one (``raw_connection()``,
    ``session.connection().connection``). ``dedup outbox run`` sends what is committed, over the protocol of the class that
    made the tables.
    """

    _wire: ClassVar[Wire] = AMQP091

    @classmethod
    def create(cls, connection: Any) -> None:
        """
        Make the tables ``dedup_outbox`` and ``dedup_outbox_state`` where they are missing; commits nothing.

        Raises:
            ConfigError: not a connection of a database that is known.
            OutboxError: the tables are there and keep messages of another protocol, or are of an unknown version.
        """
        driver, dialect = recognise(connection)
        cursor = driver.cursor()

        def run(statement: str, parameters: tuple[Any, ...]) -> list[Any]:
            cursor.execute(dialect.spell(statement), parameters)
            return list(cursor.fetchall()) if cursor.description else []

        for statement in dialect.schema:
            cursor.execute(statement)
        agree(run, cls._wire.name, f"of this {dialect.name} database")
        cursor.close()

    @classmethod
    def enqueue(
        cls,
        connection: Any,
        body: bytes | bytearray | memoryview,
        *,
        exchange: str = "",
        routing_key: str = "",
        queue: str | None = None,
        properties: Properties | None = None,
    ) -> int:
        """
        Insert one message into the transaction *connection* is in, and return the id of its row; commits nothing.

        Arguments are those of :meth:`dedup.Publisher.publish`. Errors of the database are the driver's own.

        Raises:
            ConfigError: not a connection of a database that is known.
            InvalidMessageError: it cannot be sent as it is; nothing was inserted.
        """
        driver, dialect = recognise(connection)
        exchange, routing_key = inputs.check_place(exchange, routing_key, queue)
        row = (
            exchange,
            routing_key,
            cls._wire.unstamped(properties),
            inputs.check_body(body, BODY_BYTES_MAX),
        )
        statement = dialect.spell(
            "INSERT INTO dedup_outbox (exchange, routing_key, properties, body) VALUES (?, ?, ?, ?)"
        )
        cursor = driver.cursor()
        try:
            if dialect is POSTGRESQL:
                cursor.execute(f"{statement} RETURNING id", row)
                return int(cursor.fetchone()[0])
            cursor.execute(statement, row)
            return int(cursor.lastrowid)
        finally:
            cursor.close()
