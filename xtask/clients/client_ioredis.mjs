// ioredis with its defaults against the ports that are given.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { Redis } from "ioredis";

async function check(port) {
  const client = new Redis(port);
  client.on("error", (error) => console.error(String(error)));
  const prefix = `ioredis:${process.hrtime.bigint()}:`;
  const key = `${prefix}key`;

  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.set(key, "value"), "OK");
  assert.equal(await client.get(key), "value");
  assert.equal(await client.get(`${prefix}missing`), null);
  assert.equal(await client.incrby(`${prefix}count`, 5), 5);

  assert.equal(await client.hset(`${prefix}hash`, { a: "1", b: "2" }), 2);
  assert.deepEqual(await client.hgetall(`${prefix}hash`), { a: "1", b: "2" });

  assert.equal(await client.expire(key, 100), 1);
  const left = await client.ttl(key);
  assert.ok(left > 0 && left <= 100);

  const done = await client.multi().set(key, "changed").get(key).exec();
  assert.deepEqual(done, [[null, "OK"], [null, "changed"]]);

  const pipeline = client.pipeline();
  for (let n = 0; n < 200; n++) pipeline.set(`${prefix}many:${n}`, n);
  for (const [error] of await pipeline.exec()) assert.equal(error, null);
  const found = new Set();
  for await (const batch of client.scanStream({ match: `${prefix}many:*`, count: 17 })) {
    for (const name of batch) found.add(name);
  }
  assert.equal(found.size, 200);
  assert.deepEqual(await client.mget(`${prefix}many:7`, `${prefix}many:8`), ["7", "8"]);

  await assert.rejects(client.call("NOSUCHCOMMAND", "x"), /unknown command/);
  await client.del(...found);
  await client.quit();
}

for (const argument of process.argv.slice(2)) await check(Number(argument));
const { version } = createRequire(import.meta.url)("ioredis/package.json");
console.log("ioredis", version);
