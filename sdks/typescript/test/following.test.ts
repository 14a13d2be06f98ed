/** Workspaces that follow another one, and the radar of open workspaces. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { edits, errors } from "../src/index.js";
import { collect, newName, startServer } from "./kit.js";

const server = await startServer();
const client = server.client();

test("a follower gets the changes of its source, and keeps its own", async () => {
  const source = await client.workspaces.create(newName());
  await source.commitEdits([edits.write("a", "1\n"), edits.write("b", "1\n")]);
  const [follower] = await source.fork({ count: 1 });
  assert.ok(follower);
  assert.equal((await follower.follow(source, { everySeconds: 3600 })).update?.how, "already");
  await follower.commitEdits([edits.write("b", "own\n")]);
  await source.commitEdits([edits.write("a", "2\n")]);
  const { update } = await follower.update();
  assert.deepEqual([update?.how, update?.synced, update?.skipped, update?.total], ["updated", 1, 0, 1]);
  assert.equal(await follower.files.readText("a"), "2\n");
  assert.equal(await follower.files.readText("b"), "own\n");
  await follower.unfollow();
  await assert.rejects(follower.update(), errors.InvalidArgumentError);
});

test("the radar finds workspaces that change the same lines", async () => {
  const main = await client.workspaces.create(newName());
  await main.commitEdits([edits.write("a.txt", "one\ntwo\nthree\n")]);
  const [ann, bob] = await main.fork({ count: 2 });
  assert.ok(ann && bob);
  await ann.commitEdits([edits.replace("a.txt", "two", "TWO")]);
  await bob.commitEdits([edits.replace("a.txt", "two", "2")]);
  const [found] = await collect(client.radar.list({ workspace: ann }));
  assert.equal(found?.path, "a.txt");
  assert.deepEqual(found.sides.map(({ workspace }) => workspace).sort(), [ann.name, bob.name].sort());
  const [pair] = found.pairs;
  assert.deepEqual([pair?.kind, pair?.lines, pair?.merge], ["lines", [{ first: 2, last: 2 }], "conflict"]);
});
