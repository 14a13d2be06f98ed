// Tells the story of sdks/scenario/scenario.yaml: node scripts/scenario.mjs FILE WORKSPACE
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { Amalgam, errors } from "../dist/src/index.js";

const WHO = "typescript";
const [file, name] = process.argv.slice(2);
const text = readFileSync(file, "utf8").replaceAll("{who}", WHO);
const steps = text.split("\n").flatMap((line) => (line.startsWith("- ") ? [JSON.parse(line.slice(2))] : []));

async function collect(found, limit = Infinity) {
  const all = [];
  for await (const one of found) if (all.push(one) >= limit) break;
  return all;
}

const client = new Amalgam();
const main = await client.workspaces.get(name);
const actions = {
  write: (ws, step) => ws.files.write(step.path, step.text),
  edit: (ws, step) => ws.files.edit(step.path, step.old, step.new),
  remove: (ws, step) => ws.files.remove(step.path),
  commit: (ws, step) => ws.commit(step.message),
  undo: (ws) => ws.undo(),
  fork: (ws, step) => ws.fork({ names: [step.name] }),
  state: (ws, step) => ws.state.set(step.key, step.value),
  merge: async (ws, step) => assert.ok((await ws.merge(await client.workspaces.get(step.from))).isApplied),
  read: async (ws, step) => assert.equal(await ws.files.readText(step.path), step.text),
  changes: async (ws, step) => {
    const paths = (await ws.status()).changes.map((change) => change.path);
    for (const path of step.paths) assert.ok(paths.includes(path), path);
  },
  diff: async (ws, step) => assert.deepEqual((await collect(ws.diff())).map((change) => change.kind), step.kinds),
  log: async (ws, step) => {
    const found = await collect(ws.log(), step.messages.length);
    assert.deepEqual(found.map((snapshot) => snapshot.message), step.messages);
  },
  missing: (ws, step) => assert.rejects(ws.files.read(step.path), errors.NotFoundError),
};
for (const step of steps) {
  const ws = step.in ? await client.workspaces.get(step.in) : main;
  await actions[step.do](ws, step);
}
client.close();
console.log(`${WHO}: ${steps.length} steps`);
