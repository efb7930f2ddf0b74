// Works on an object store as it is told: one JSON command a line, one JSON answer a line.
// Content is in files, which are read and written whole.
const fs = require("node:fs");
const readline = require("node:readline");
const { connect, headers } = require("@nats-io/transport-node");
const { Objm } = require("@nats-io/obj");

const told = (info) => info && {
  name: info.name,
  bucket: info.bucket,
  size: info.size,
  chunks: info.chunks,
  digest: info.digest,
  deleted: info.deleted,
  description: info.description ?? "",
  metadata: info.metadata ?? {},
  headers: info.headers ? [...info.headers].map(([k, v]) => [k, v]) : [],
  link: info.options?.link ?? null,
};

const verbs = {
  async create(objm, { bucket, options }) {
    await objm.create(bucket, options);
    return null;
  },
  async put(objm, { bucket, name, file, meta }) {
    const store = await objm.open(bucket);
    const h = headers();
    for (const [key, value] of meta?.headers ?? []) h.append(key, value);
    return told(await store.putBlob({ ...meta, name, headers: h }, fs.readFileSync(file)));
  },
  async get(objm, { bucket, name, file }) {
    const store = await objm.open(bucket);
    const data = await store.getBlob(name);
    if (data !== null) fs.writeFileSync(file, data);
    return data !== null;
  },
  async info(objm, { bucket, name }) {
    return told(await (await objm.open(bucket)).info(name));
  },
  async list(objm, { bucket }) {
    return (await (await objm.open(bucket)).list()).map((info) => info.name);
  },
  async delete(objm, { bucket, name }) {
    await (await objm.open(bucket)).delete(name);
    return null;
  },
  async link(objm, { bucket, name, goal }) {
    const store = await objm.open(bucket);
    return told(await store.link(name, await store.info(goal)));
  },
  async linkStore(objm, { bucket, name, goal }) {
    return told(await (await objm.open(bucket)).linkStore(name, await objm.open(goal)));
  },
  async rename(objm, { bucket, name, to }) {
    await (await objm.open(bucket)).update(name, { name: to });
    return null;
  },
  async status(objm, { bucket }) {
    const status = await (await objm.open(bucket)).status();
    return { bucket: status.bucket, sealed: status.sealed, storage: status.storage, description: status.description };
  },
};

(async () => {
  const nc = await connect({ servers: process.argv[2] });
  const objm = new Objm(nc);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    let answer;
    try {
      answer = { value: await verbs[command.verb](objm, command) };
    } catch (error) {
      answer = { error: `${error.name}: ${error.message}` };
    }
    console.log(JSON.stringify(answer));
  }
  await nc.close();
})();
