"""Keep the relay's state in Redis; the only place that talks to it."""
