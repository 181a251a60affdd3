"""Every benchmark that ``make bench`` runs, one after the other; arguments go to each."""

from __future__ import annotations

from tests.benchmarks import amqp10, forwarding, markers, moving, outbox, publishing, start, tasks

for benchmark in (publishing, outbox, tasks, forwarding, markers, moving, amqp10, start):
    benchmark.main()
