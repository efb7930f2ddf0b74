// Responses in parts: what requestMany of nats.js gets of an endpoint, then a responder that knows nothing of streams.
const { connect, headers } = require("@nats-io/transport-node");

async function collect(iterator) {
  const all = [];
  for await (const one of await iterator) all.push(one);
  return all;
}

async function main() {
  const nc = await connect({ servers: process.argv[2] });
  const say = (what, value) => console.log(JSON.stringify({ what, value }));
  for (const strategy of ["sentinel", "stall", "count", "timer"]) {
    const options = { strategy, maxWait: strategy === "timer" ? 1000 : 10000, stall: 500, maxMessages: 5 };
    const got = await collect(nc.requestMany("count", "5", options));
    say(strategy, got.map((msg) => [msg.string(), msg.reply ?? "", msg.headers?.keys() ?? []]));
  }
  const failed = await collect(nc.requestMany("fail", "", { strategy: "sentinel", maxWait: 10000 }));
  say("fail", failed.map((msg) => [msg.string(), msg.headers?.get("Nats-Service-Error-Code") ?? ""]));

  nc.subscribe("plain", {
    callback: (err, msg) => {
      for (let number = 0; number < 2000; number++) msg.respond(String(number));
      msg.respond("");
    },
  });
  nc.subscribe("plain.error", {
    callback: (err, msg) => {
      const h = headers();
      h.set("Nats-Service-Error", "teapot");
      h.set("Nats-Service-Error-Code", "418");
      msg.respond("first");
      msg.respond("", { headers: h });
    },
  });
  await nc.flush();
  say("ready", true);
  process.stdin.resume();
  process.stdin.on("end", () => nc.close());
}
main();
