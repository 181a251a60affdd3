"""Speak AMQP 0.9.1: pika, and only here; it keeps the connection, the content path is ours and byte for byte."""
