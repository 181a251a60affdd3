"""
Measure how fast ``dedup move`` empties one queue into another, beside RabbitMQ's own shovel.

::

    python -m tests.benchmarks.moving [--messages 50000] [--rounds 5] [--rabbitmq 4.0] [--json]

As the benchmark of forwarding: persistent 200-byte messages with a stamp, classic to classic (exact), one broker, on this machine;
the rate is taken over the middle 80 %, and ratios of one round are compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests.benchmarks import rounds
from tests.benchmarks.forwarding import Bench, run_child


def main() -> None:
    """
    Run the rounds and print rates and the ratio.
    """
    options = rounds.parser(__doc__, messages=50_000).parse_args()
    plugins = ("rabbitmq_management", "rabbitmq_shovel")
    with RabbitMQ(options.rabbitmq, plugins=plugins) as rabbitmq, Redis() as redis:
        bench = Bench(rabbitmq, redis, batch_max=500)

        @contextmanager
        def move(queue: str) -> Iterator[None]:
            management = str(rabbitmq.management_url)
            urls = ["--amqp", rabbitmq.url, "--redis", redis.url, "--management", management]
            ends = ["--forwarding", "exact", names.ingress(queue), queue]
            yield from run_child([sys.executable, "-m", "dedup.cli", "move", *urls, *ends])

        ways = {
            "move": partial(bench.turn, move, options.messages),
            "shovel": partial(bench.turn, bench.shovel, options.messages),
        }
        rates = rounds.take_turns(options.rounds, ways)
        bench.connection.close()
    ratio = rounds.ratio(rates, "move", "shovel")
    if options.json:
        print(json.dumps({"rates": rates, "to_shovel": ratio}))
        return
    rounds.show(rates)
    print(f"move / shovel: {ratio:.2f} (median of the ratios of each round)")


if __name__ == "__main__":
    main()
