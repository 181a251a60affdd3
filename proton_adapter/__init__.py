"""AMQP 1.0 for dedup: the publisher and its outbox, with python-qpid-proton."""

from proton_adapter.outbox import Outbox
from proton_adapter.properties import Properties
from proton_adapter.publisher import Publisher

__all__ = ["Outbox", "Properties", "Publisher"]
