"""Servers and faults for tests: private RabbitMQ and Redis nodes, and a link that breaks on request."""
