// node-redis with its defaults against the ports that are given.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { createClient } from "redis";

async function check(port) {
  const client = createClient({ url: `redis://127.0.0.1:${port}` });
  client.on("error", (error) => console.error(String(error)));
  await client.connect();
  const prefix = `node:${process.hrtime.bigint()}:`;
  const key = `${prefix}key`;

  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.set(key, "value"), "OK");
  assert.equal(await client.get(key), "value");
  assert.equal(await client.get(`${prefix}missing`), null);
  assert.equal(await client.incrBy(`${prefix}count`, 5), 5);

  assert.equal(await client.hSet(`${prefix}hash`, { a: "1", b: "2" }), 2);
  assert.deepEqual({ ...(await client.hGetAll(`${prefix}hash`)) }, { a: "1", b: "2" });

  assert.equal(Number(await client.expire(key, 100)), 1);
  const left = await client.ttl(key);
  assert.ok(left > 0 && left <= 100);

  const done = await client.multi().set(key, "changed").get(key).exec();
  assert.deepEqual(done, ["OK", "changed"]);

  const numbers = [...Array(200).keys()];
  await Promise.all(numbers.map((n) => client.set(`${prefix}many:${n}`, String(n))));
  const found = new Set();
  for await (const batch of client.scanIterator({ MATCH: `${prefix}many:*`, COUNT: 17 })) {
    for (const name of [batch].flat()) found.add(name);
  }
  assert.equal(found.size, 200);
  assert.deepEqual(await client.mGet([`${prefix}many:7`, `${prefix}many:8`]), ["7", "8"]);

  await assert.rejects(client.sendCommand(["NOSUCHCOMMAND", "x"]), /unknown command/);
  await client.del([...found]);
  await client.close();
}

for (const argument of process.argv.slice(2)) await check(Number(argument));
const { version } = createRequire(import.meta.url)("redis/package.json");
console.log("node-redis", version);
