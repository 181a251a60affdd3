"""Ship a file line by line, each once however often this is killed and started again: the line's number is its sequence."""

import sys
from pathlib import Path

from dedup import Publisher

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"
file = Path(sys.argv[2] if len(sys.argv) > 2 else __file__)

with Publisher(url, f"file:{file.name}") as publisher, file.open("rb") as lines:
    point = publisher.resume_point(queue="orders", queues=["orders"])
    futures = [
        publisher.submit(line, queue="orders", sequence=number)
        for number, line in enumerate(lines, start=1)
        if point.lacks(number)
    ]
    publisher.flush(timeout=60)
    receipts = [future.result() for future in futures]
    print(f"{len(receipts)} lines shipped, the first {point.next - 1} were there")
