"""Every benchmark that ``make bench`` runs, one after the other; arguments go to each."""

from __future__ import annotations

from tests.benchmarks import forwarding, markers, publishing

for benchmark in (publishing, forwarding, markers):
    benchmark.main()
