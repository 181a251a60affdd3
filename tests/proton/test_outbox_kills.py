"""A publisher, an application and a relay of AMQP 1.0 are killed: everything kept is once in the target, and none lost."""

from __future__ import annotations

import pytest

from proton_adapter import Outbox
from tests.fault.outbox_kills import OutboxKills


@pytest.mark.each_version("long")
class TestOutbox(OutboxKills):
    """
    What it has in common with every protocol.
    """

    protocol = "amqp10"
    outbox = Outbox
    kills = 8
    relay_kills = 6
