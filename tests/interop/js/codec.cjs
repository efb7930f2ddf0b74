// A bucket whose keys nats.js encodes in base64: what it writes ("write"), and what it finds ("read").
const { connect } = require("@nats-io/transport-node");
const { Base64KeyCodec, Kvm, NoopKvCodecs } = require("@nats-io/kv");

async function main() {
  const [url, bucket, mode, ...keys] = process.argv.slice(2);
  const nc = await connect({ servers: url });
  const codec = { key: Base64KeyCodec(), value: NoopKvCodecs().value };
  const kv = await new Kvm(nc).create(bucket, { codec });
  if (mode === "write") for (const key of keys) await kv.put(key, key);
  else for (const key of keys) console.log(JSON.stringify((await kv.get(key))?.string() ?? null));
  await nc.close();
}
main();
