"""The publisher for asyncio."""

from dedup.aio.publication import Publication
from dedup.aio.publisher import Publisher

__all__ = ["Publication", "Publisher"]
