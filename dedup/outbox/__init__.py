"""The durable outbox: a message is committed to a database before it is sent, and deleted when the broker has it."""
