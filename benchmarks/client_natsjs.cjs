// nats.js in a process of its own: the same protocol and the same drivers as benchmarks/worker.py.
const readline = require("readline");
const { connect } = require("@nats-io/transport-node");
const { jetstream, jetstreamManager, AckPolicy } = require("@nats-io/jetstream");
const { Kvm } = require("@nats-io/kv");

const spec = JSON.parse(process.argv[2]);
const { prefix, count, how, subscriptions, fan_out: fanOut } = spec;
const STAMP = 20;
let wall, cpu;

function start() {
  global.gc();
  cpu = process.cpuUsage();
  wall = process.hrtime.bigint();
}

function stop(operations) {
  const taken = Number(process.hrtime.bigint() - wall);
  const used = process.cpuUsage(cpu);
  return { rate: (operations * 1e9) / taken, cpu_us: (used.user + used.system) / operations };
}

function latencies(micros) {
  micros.sort((a, b) => a - b);
  return { p50_us: micros[micros.length >> 1], p99_us: micros[Math.floor((micros.length * 99) / 100)] };
}

function check(complete, what) {
  if (!complete) throw new Error(`not a fair run: ${what}`);
}

async function prepare(nc, seed, to = prefix) {
  const answer = await nc.request("feeder.prepare", JSON.stringify({ prefix: to, seed, count }), { timeout: 30000 });
  return answer.json().bytes;
}

// The messages of a seed, as a Python client makes them: the feeder publishes them to us.
async function load(nc, seed) {
  await prepare(nc, seed, `load-${prefix}`);
  const messages = [];
  const sub = nc.subscribe(`load-${prefix}.>`);
  nc.publish("feeder.go");
  for await (const m of sub) {
    messages.push({ subject: prefix + m.subject.slice(5 + prefix.length), payload: m.data.slice(), headers: m.headers });
    if (messages.length === count) break;
  }
  return messages;
}

const drivers = {
  async receive(nc) {
    let got = 0, target = 0, reached;
    const headers = spec.headers;
    const handle = (msg) => {
      got += msg.data.length;
      if (headers) check(msg.headers.get("traceparent").length === 55, "a wrong header");
      if (got === target) reached();
    };
    const callback = (err, msg) => handle(msg);
    for (let n = 0; n < subscriptions; n++) {
      const subject = subscriptions > 1 && !fanOut ? `${prefix}.${n}.>` : `${prefix}.>`;
      if (how === "iterate") {
        const sub = nc.subscribe(subject);
        (async () => {
          for await (const msg of sub) handle(msg);
        })();
      } else nc.subscribe(subject, { callback });
    }
    await nc.flush();
    return async (seed) => {
      const copies = fanOut ? subscriptions : 1;
      got = 0;
      target = (await prepare(nc, seed)) * copies;
      const done = new Promise((resolve) => (reached = resolve));
      start();
      nc.publish("feeder.go");
      await done;
      return stop(count * copies);
    };
  },

  async trickle(nc) {
    let came = [], reached;
    const handle = (msg) => {
      came.push([process.hrtime.bigint(), msg.data.slice(0, STAMP)]);
      if (came.length === count) reached();
    };
    const options = how === "iterate" ? {} : { callback: (err, msg) => handle(msg) };
    const sub = nc.subscribe(`${prefix}.>`, options);
    if (how === "iterate") {
      (async () => {
        for await (const msg of sub) handle(msg);
      })();
    }
    await nc.flush();
    return async (seed) => {
      await prepare(nc, seed);
      came = [];
      const done = new Promise((resolve) => (reached = resolve));
      start();
      nc.publish("feeder.go");
      await done;
      const figures = stop(count);
      const micros = came.map(([at, sent]) => Number(at - BigInt(Buffer.from(sent).toString())) / 1000);
      return { ...figures, ...latencies(micros) };
    };
  },

  async publish(nc) {
    return async (seed) => {
      const messages = await load(nc, seed);
      await nc.flush();
      start();
      for (const { subject, payload, headers } of messages) nc.publish(subject, payload, { headers });
      await nc.flush();
      return stop(count);
    };
  },

  async request(nc) {
    const workers = Number(how);
    return async (seed) => {
      const messages = await load(nc, seed);
      const micros = [];
      const worker = async (place) => {
        for (let n = place; n < count; n += workers) {
          const begun = process.hrtime.bigint();
          const reply = await nc.request(`echo.${prefix}`, messages[n].payload, { timeout: 30000 });
          micros.push(Number(process.hrtime.bigint() - begun) / 1000);
          check(reply.data.length === messages[n].payload.length, "a wrong answer");
        }
      };
      start();
      await Promise.all(Array.from({ length: workers }, (_, place) => worker(place)));
      return { ...stop(count), ...latencies(micros) };
    };
  },

  async window(nc) {
    const jsm = await jetstreamManager(nc), js = jetstream(nc), name = `${prefix}-window`;
    return async (seed) => {
      const messages = await load(nc, seed);
      await jsm.streams.add({ name, subjects: [`${prefix}.>`], storage: "memory" });
      start();
      const waiting = new Set();
      for (const { subject, payload, headers } of messages) {
        const ack = js.publish(subject, payload, { headers, timeout: 30000 }).then(() => waiting.delete(ack));
        waiting.add(ack);
        if (waiting.size >= 1000) await Promise.race(waiting);
      }
      await Promise.all(waiting);
      const figures = stop(count);
      check((await jsm.streams.info(name)).state.messages === count, "not everything was stored");
      await jsm.streams.delete(name);
      return figures;
    };
  },

  async fetch(nc) {
    const jsm = await jetstreamManager(nc), js = jetstream(nc), name = `${prefix}-fetch`;
    return async (seed) => {
      await jsm.streams.add({ name, subjects: [`${prefix}.>`], storage: "memory" });
      const target = await prepare(nc, seed);
      await nc.request("feeder.fill", "", { timeout: 30000 });
      await jsm.consumers.add(name, { durable_name: "BENCH", ack_policy: how === "ack" ? AckPolicy.Explicit : AckPolicy.None });
      const consumer = await js.consumers.get(name, "BENCH");
      let got = 0, came = 0;
      start();
      while (came < count) {
        for await (const msg of await consumer.fetch({ max_messages: Math.min(500, count - came) })) {
          came++;
          got += msg.data.length;
          if (how === "ack") msg.ack();
          else if (how === "headers") check(msg.headers.get("traceparent").length === 55, "a wrong header");
        }
      }
      await nc.flush();
      const figures = stop(count);
      check(got === target, `${got} of ${target} bytes`);
      await jsm.streams.delete(name);
      return figures;
    };
  },

  async watch(nc) {
    const jsm = await jetstreamManager(nc), kvm = new Kvm(nc);
    return async (seed) => {
      const bucket = `${prefix}-${seed}`;
      await kvm.create(bucket, { storage: "memory" });
      const target = await prepare(nc, seed, `$KV.${bucket}`);
      await nc.request("feeder.fill", "", { timeout: 30000 });
      const kv = await kvm.open(bucket);
      let got = 0;
      start();
      for await (const entry of await kv.watch()) {
        got += entry.value.length;
        if (entry.delta === 0) break;
      }
      const figures = stop(count);
      check(got === target, `${got} of ${target} bytes`);
      await jsm.streams.delete(`KV_${bucket}`);
      return figures;
    };
  },
};

async function main() {
  const nc = await connect({ servers: spec.url });
  const repeat = await drivers[spec.does](nc);
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await repeat(Number(line))));
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
