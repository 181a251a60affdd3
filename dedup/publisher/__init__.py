"""The publisher for threads: blocking and pipelined."""

from dedup.amqp091.publishing import Properties
from dedup.publisher.buffer import Publication
from dedup.publisher.publisher import Publisher

__all__ = ["Properties", "Publication", "Publisher"]
