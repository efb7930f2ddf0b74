// Everything a client of nats.js finds out about the services it sees, and what they answer.
const { connect } = require("@nats-io/transport-node");
const { Svcm, ServiceError } = require("@nats-io/services");

async function collect(iterator) {
  const all = [];
  for await (const one of await iterator) all.push(one);
  return all;
}

async function main() {
  const nc = await connect({ servers: process.argv[2] });
  const [name, id] = process.argv.slice(3);
  const client = new Svcm(nc).client({ strategy: "stall", maxWait: 10000 });
  const patience = { timeout: 10000 };
  const say = (what, value) => console.log(JSON.stringify({ what, value }));
  say("ping", await collect(client.ping()));
  say("ping name", await collect(client.ping(name)));
  say("ping id", await collect(client.ping(name, id)));
  say("info", await collect(client.info(name, id)));
  const sum = await nc.request("v1.add", "40 2", patience);
  say("add", [sum.string(), ServiceError.isServiceError(sum), sum.headers?.values("Tag") ?? []]);
  const refused = await nc.request("refuse", "", patience);
  const error = ServiceError.toServiceError(refused);
  say("refuse", [error.code, error.message, refused.string()]);
  const failed = await nc.request("fail", "", patience);
  say("fail", ServiceError.isServiceError(failed) ? ServiceError.toServiceError(failed).code : null);
  say("stats", await collect(client.stats(name, id)));
  await nc.close();
}
main();
