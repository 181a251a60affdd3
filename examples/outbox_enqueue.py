"""Take orders and tell of them in one transaction; send what is committed as "dedup outbox flush" does."""

import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from dedup import Outbox

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"
file = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()) / "shop.db"

connection = sqlite3.connect(file)
connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
Outbox.create(connection)
connection.commit()

for item in ["tea", "coffee", None, "milk"]:
    try:
        with connection:  # both rows, or neither
            Outbox.enqueue(connection, f"order of {item}".encode(), queue="orders")
            connection.execute("INSERT INTO orders (item) VALUES (?)", (item,))
    except sqlite3.IntegrityError as error:
        print(f"no order, no message: {error}")
connection.close()

program = str(Path(sys.executable).parent / "dedup")
flush = [program, "outbox", "flush", "--database", str(file), "--publisher-id", "shop-8", "--amqp", url]
done = subprocess.run(flush, check=True, capture_output=True, text=True)  # noqa: S603 (its arguments are known)
print(done.stdout, end="")
