"""Publisher-side de-duplication for RabbitMQ: a retried publish reaches the queue once."""

__version__ = "0.1.0"
