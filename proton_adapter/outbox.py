"""Put messages of AMQP 1.0 into an outbox inside the application's own transaction."""

from __future__ import annotations

import dedup
from proton_adapter.publishing import AMQP10


class Outbox(dedup.Outbox):
    """
    The transactional outbox of :class:`dedup.Outbox`, whose messages go over AMQP 1.0; RabbitMQ 4 and newer.

    Properties are a :class:`proton_adapter.Properties`. An outbox is of one protocol: that of the class which made its tables,
    or which found them empty in :meth:`create`.
    """

    _wire = AMQP10
