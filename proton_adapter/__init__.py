"""AMQP 1.0 for dedup: the publisher, with python-qpid-proton."""

from proton_adapter.properties import Properties
from proton_adapter.publisher import Publisher

__all__ = ["Properties", "Publisher"]
