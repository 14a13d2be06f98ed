/** Time travel: an agent's state and its files are in one snapshot, so that an earlier step brings both back. */
import { Amalgam } from "../src/index.js";

interface Notes {
  lines: string[];
}

await using client = new Amalgam();
const ws = await client.workspaces.create(`time-travel-${crypto.randomUUID().slice(0, 8)}`);
await ws.files.write("notes.md", "");
await ws.state.set("notes", { lines: [] });

/** One step of the agent: it adds a line to its state and to a file. */
async function step(): Promise<string> {
  const notes = (await ws.state.get("notes")) as unknown as Notes;
  const line = `line ${notes.lines.length + 1}`;
  await ws.files.write("notes.md", `${await ws.files.readText("notes.md")}${line}\n`);
  await ws.state.set("notes", { lines: [...notes.lines, line] });
  return (await ws.commit(line, { kind: "step" })).id;
}

const first = await step();
await step();
console.log("now:   ", JSON.stringify(await ws.files.readText("notes.md")), await ws.state.get("notes"));
await ws.restore(first);
console.log("before:", JSON.stringify(await ws.files.readText("notes.md")), await ws.state.get("notes"));
await ws.undo();
console.log("again: ", JSON.stringify(await ws.files.readText("notes.md")), await ws.state.get("notes"));
