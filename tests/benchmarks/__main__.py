"""Every benchmark that ``make bench`` runs, one after the other; arguments go to each."""

from __future__ import annotations

from tests.benchmarks import forwarding, publishing

for benchmark in (publishing, forwarding):
    benchmark.main()
