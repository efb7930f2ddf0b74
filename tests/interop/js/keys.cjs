// A bucket as nats.js sees it ("read"), or as it writes it ("write"). Values travel as base64.
const { connect } = require("@nats-io/transport-node");
const { Kvm } = require("@nats-io/kv");

async function main() {
  const [url, bucket, mode] = process.argv.slice(2);
  const nc = await connect({ servers: url });
  const kvm = new Kvm(nc);
  const say = (what, value) => console.log(JSON.stringify({ what, value }));
  const tell = (e) => [e.key, Buffer.from(e.value).toString("base64"), e.revision, e.operation, e.delta];
  if (mode === "write") {
    const kv = await kvm.create(bucket, { history: 5, markerTTL: 1000, description: "from JavaScript", max_bytes: 1000000 });
    await kv.put("a/b=c_d-1.x", Uint8Array.from([0, 255, 10, 13]));
    await kv.create("created", "ä");
    await kv.update("created", "second", 2);
    await kv.put("gone", "1");
    await kv.delete("gone");
    await kv.put("purged", "1");
    await kv.put("purged", "2");
    await kv.purge("purged");
    await kv.put("empty", "");
    await kv.create("expires", "soon", "1s");
    say("written", (await kv.status()).values);
  } else {
    const kv = await kvm.open(bucket);
    const keys = [];
    for await (const key of await kv.keys()) keys.push(key);
    say("keys", keys);
    const history = [];
    for await (const e of await kv.history()) history.push(tell(e));
    say("history", history);
    for (const key of ["a/b=c_d-1.x", "gone", "purged", "expired", "never"]) {
      const e = await kv.get(key);
      say(`get ${key}`, e === null ? null : tell(e));
    }
    const old = await kv.get("created", { revision: 2 });
    say("revision", tell(old));
    let refused = null;
    try {
      await kv.create("created", "x");
    } catch (err) {
      refused = err.message;
    }
    say("create", refused);
    const s = await kv.status();
    say("status", [s.bucket, s.history, s.values, s.backingStore, s.description, s.ttl, s.markerTTL]);
    const iter = await kv.watch({ key: "watched.*" });
    say("watching", true);
    for await (const e of iter) {
      say("entry", tell(e));
      if (e.operation === "PURGE") break;
    }
  }
  await nc.close();
}
main();
