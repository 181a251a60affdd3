"use strict";
// Publish from Node: the id of a row is the number of its message, so that sending it again is safe.

const { setTimeout: sleep } = require("node:timers/promises");
const amqp = require("amqplib");

const url = process.argv[2] ?? "amqp://localhost";
// As read from an outbox table, oldest first; a row leaves it when its message is confirmed.
const outbox = Array.from({ length: 100 }, (_, n) => ({ id: n + 1, order: `node, order ${n}` }));
let sentAgain = 0;

// Resolved when the broker has the message; rejected when it is nacked, or the channel is gone.
function publish(channel, row) {
  return new Promise((resolve, reject) => {
    const options = {
      appId: "shop-11",
      headers: { "dedup-sequence": row.id },
      persistent: true,
      mandatory: true,
    };
    channel.publish("", "orders.dedup", Buffer.from(row.order), options, (error) =>
      error ? reject(error) : resolve(),
    );
  });
}

async function publishAll(connection) {
  const channel = await connection.createConfirmChannel();
  channel.on("error", () => {}); // publish() tells
  channel.on("return", () => {
    console.error("no queue orders.dedup: guard the queue first");
    process.exit(1); // the confirm that follows would be no success
  });
  while (outbox.length > 0) {
    const rows = outbox.slice(0, 10);
    sentAgain += rows.filter((row) => row.sent).length;
    await Promise.all(rows.map((row) => ((row.sent = true), publish(channel, row))));
    outbox.splice(0, rows.length);
  }
}

async function main() {
  while (outbox.length > 0) {
    let connection;
    try {
      connection = await amqp.connect(url);
      connection.on("error", () => {}); // publish() tells
      await publishAll(connection);
    } catch {
      // Stored or not? Nobody knows. The same ids make them the same messages; the oldest go first.
      await sleep(200);
    }
    await connection?.close().catch(() => {});
  }
  console.log(`100 orders confirmed, ${sentAgain} sent again`);
}

main();
