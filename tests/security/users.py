"""Users of a broker with exactly the permissions a test names."""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Self
from urllib.parse import quote

import pytest

from dedup.testing.servers import RabbitMQ
from tests.looking import administer

PASSWORD = "planted-s3cret"


class Users:
    """
    Users of one broker, made through its management API and deleted at the end.

    Each has a name that no other run uses.
    """

    def __init__(self, rabbitmq: RabbitMQ) -> None:
        if rabbitmq.external:
            pytest.skip("makes users: needs a private RabbitMQ")
        self._rabbitmq = rabbitmq
        self._suffix = uuid.uuid4().hex[:6]
        self._names: list[str] = []

    def name(self, short: str) -> str:
        """Return the whole name of a user."""
        return f"{short}-{self._suffix}"

    def add(
        self, short: str, *, configure: str = "^$", write: str = "^$", read: str = "^$", tags: str = ""
    ) -> str:
        """Add a user, or change one, and return its URL."""
        name = self.name(short)
        self._names.append(name)
        administer(self._rabbitmq, "PUT", f"users/{name}", {"password": PASSWORD, "tags": tags})
        rights = {"configure": configure, "write": write, "read": read}
        administer(self._rabbitmq, "PUT", f"permissions/%2F/{quote(name)}", rights)
        return self.url(short)

    def url(self, short: str) -> str:
        """Return the AMQP URL of a user."""
        return self._rabbitmq.url.replace("guest:guest", f"{self.name(short)}:{PASSWORD}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in {*self._names}:
            administer(self._rabbitmq, "DELETE", f"users/{name}")
