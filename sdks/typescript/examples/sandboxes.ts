/** A set-up that runs once, in a sandbox; its running copies try different things, and the best one is kept. */
import { Amalgam } from "../src/index.js";

await using client = new Amalgam();
const ws = await client.workspaces.create(`sandboxes-${crypto.randomUUID().slice(0, 8)}`);
await ws.files.write("count.sh", "wc -l < data | tr -d ' '\n");
await using origin = await ws.sandbox({ lifetimeSeconds: 600 });
await origin.commands.run("seq 10 > data");

const copies = await origin.fork({ count: 3 });
try {
  const scores = await Promise.all(
    copies.map(async (copy, index) => {
      await copy.commands.run(`seq ${index + 1} >> data`);
      return Number((await copy.commands.run("sh count.sh")).stdout);
    }),
  );
  const best = scores.indexOf(Math.max(...scores));
  const winner = await client.workspaces.get(copies[best]?.workspace ?? "");
  await winner.commit("the best attempt");
  await ws.commit("the set-up");
  await ws.merge(winner);
  console.log(`scores ${scores.join(", ")}; kept copy ${best + 1}`);
} finally {
  await client.sandboxes.batchDelete(copies.map(({ id }) => id));
}
