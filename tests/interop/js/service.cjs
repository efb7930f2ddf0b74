// A service of nats.js: says its id when it runs, its statistics when its input ends.
const { connect, headers } = require("@nats-io/transport-node");
const { Svcm } = require("@nats-io/services");

async function main() {
  const nc = await connect({ servers: process.argv[2] });
  const service = await new Svcm(nc).add({
    name: "js",
    version: "1.2.3",
    description: "from JavaScript",
    metadata: { language: "javascript" },
    statsHandler: (endpoint) => Promise.resolve({ of: endpoint.name }),
  });
  const group = service.addGroup("v1", "workers");
  group.addEndpoint("add", {
    metadata: { unit: "none" },
    handler: (err, msg) => {
      const [a, b] = msg.string().split(" ").map(Number);
      const h = headers();
      h.append("Tag", "a");
      h.append("Tag", "b");
      msg.respond(String(a + b), { headers: h });
    },
  });
  service.addEndpoint("refuse", (err, msg) => msg.respondError(418, "teapot", "details"));
  service.addEndpoint("fail", () => {
    throw new Error("secret of the house");
  });
  service.addEndpoint("every", (err, msg) => msg.respond("js"));
  await nc.flush();
  console.log(JSON.stringify(service.info()));
  process.stdin.resume();
  process.stdin.on("end", async () => {
    console.log(JSON.stringify(await service.stats()));
    await service.stop();
    await nc.close();
  });
}
main();
