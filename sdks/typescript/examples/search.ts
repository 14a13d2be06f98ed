/** A search over program edits: each state is one call, recorded as a step of an episode with its reward. */
import { Amalgam, type Step, edits } from "../src/index.js";

const TARGET = 42;

await using client = new Amalgam();
const ws = await client.workspaces.create(`search-${crypto.randomUUID().slice(0, 8)}`);
await ws.commitEdits([edits.write("value.txt", "1")], { message: "begin" });
const episode = await client.episodes.begin(ws.name);

let front: { step: Step; value: number }[] = [
  { step: await episode.record({ revision: "@", workspace: ws.name, reward: -TARGET }), value: 1 },
];
for (let depth = 0; depth < 6; depth += 1) {
  const children = front.flatMap(({ step, value }) => [value + 3, value * 2].map((next) => ({ step, value: next })));
  const recorded = await Promise.all(
    children.map(async ({ step, value }) => ({
      value,
      step: await episode.record({
        parent: step,
        edits: [edits.write("value.txt", String(value))],
        reward: -Math.abs(TARGET - value),
        buffered: true,
      }),
    })),
  );
  // A beam search: the best three go on.
  front = recorded.sort((one, other) => (other.step.reward ?? 0) - (one.step.reward ?? 0)).slice(0, 3);
}
const [best] = await episode.best({ order: "reward" });
if (!best) throw new Error("the episode has no steps");
const path = await episode.pathTo(best);
console.log(`reward ${best.reward} after ${path.length - 1} edits`);
await ws.restore(best.snapshot);
console.log(`value.txt: ${await ws.files.readText("value.txt")}`);
