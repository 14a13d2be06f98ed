/** Workspaces, snapshots, merges, episodes, events, projects and keys, through a real server. */
import assert from "node:assert/strict";
import { before, beforeEach, test } from "node:test";

import { type Amalgam, EMPTY, type Workspace, edits, errors } from "../src/index.js";
import { type TestServer, collect, newName, startServer } from "./kit.js";

let server: TestServer;
let client: Amalgam;
let ws: Workspace;
before(async () => {
  server = await startServer();
  client = server.client();
});
beforeEach(async () => {
  ws = await client.workspaces.create(newName());
});

test("a commit is found again with its message, labels and metadata", async () => {
  await ws.files.write("a.py", "x = 1\n");
  assert.ok((await ws.status()).hasChanges);
  const name = newName();
  const first = await ws.commit("first", { metadata: { tests: "pass" }, labels: [name], note: "n", reward: 0.5 });
  assert.ok(first.isChanged && first.snapshot);
  assert.equal(ws.head, first.id);
  assert.equal((await ws.commit("nothing")).isChanged, false);
  const found = await client.snapshots.get(name);
  assert.deepEqual(
    [found.id, found.message, found.metadata["tests"], found.labels, found.note, found.reward, found.author],
    [first.id, "first", "pass", [name], "n", 0.5, "tester"],
  );
  assert.deepEqual((await collect(client.labels.list(name))).map((label) => label.snapshot), [first.id]);
});

test("two snapshots are compared as a diff, a patch and an insight", async () => {
  const first = await ws.commitEdits([edits.write("a.txt", "1\n2\n"), edits.write("gone", "x\n")]);
  const second = await ws.commitEdits([edits.replace("a.txt", "2", "3"), edits.rename("gone", "moved")], {
    withChanges: true,
    withSummary: true,
  });
  const changes = await collect(ws.diff(first.id, second.id));
  assert.deepEqual(
    changes.map(({ kind, path, fromPath }) => [kind, path, fromPath]),
    [
      ["modified", "a.txt", ""],
      ["renamed", "moved", "gone"],
    ],
  );
  assert.deepEqual((await collect(ws.diff(first.id, second.id, { paths: ["a.txt"] }))).length, 1);
  assert.equal((await collect(ws.diff(EMPTY, "@"))).length, 2);
  assert.match((await ws.patch()).text, /-2\n\+3\n/);
  const insight = await ws.insight();
  assert.deepEqual([insight.summary.linesAdded, insight.summary.linesRemoved], [1, 1]);
  assert.ok(second.summary && second.changes.length > 0);
  assert.deepEqual((await collect(ws.log())).map((one) => one.id), [second.id, first.id]);
});

test("a log of a path has the snapshots that changed it", async () => {
  const first = await ws.commitEdits([edits.write("a", "1"), edits.write("dir/b", "1")]);
  const second = await ws.commitEdits([edits.write("a", "2")]);
  const third = await ws.commitEdits([edits.write("dir/b", "2")]);
  const ids = async (path: string): Promise<string[]> => (await collect(ws.log({ path }))).map((one) => one.id);
  assert.deepEqual(await ids("a"), [second.id, first.id]);
  assert.deepEqual(await ids("dir"), [third.id, first.id]);
  const listed = await collect(client.snapshots.list({ workspace: ws.name, path: "a" }));
  assert.deepEqual(listed.map((one) => one.id), [second.id, first.id]);
});

test("a commit is refused when the head moved", async () => {
  const first = await ws.commitEdits([edits.write("a", "1")], { expectedHead: "none" });
  await ws.commitEdits([edits.write("a", "2")], { expectedHead: first.id });
  await assert.rejects(
    ws.commitEdits([edits.write("a", "3")], { expectedHead: first.id }),
    (error: unknown) => error instanceof errors.StaleHeadError && error.suggestion.includes("refresh"),
  );
});

test("forks are independent, and a restore can be undone", async () => {
  const first = await ws.commitEdits([edits.write("a", "1")]);
  await ws.commitEdits([edits.write("a", "2"), edits.write("b", "2")]);
  const [left, right] = await ws.fork({ count: 2 });
  assert.ok(left && right);
  await left.files.write("a", "left");
  assert.equal(await right.files.readText("a"), "2");
  const plan = await ws.restore(first.id, { dryRun: true });
  assert.deepEqual(plan.changes.map((change) => change.path), ["a", "b"]);
  assert.equal(await ws.files.readText("a"), "2");
  assert.ok((await ws.restore(first.id)).isChanged);
  assert.equal(await ws.files.readText("a"), "1");
  assert.equal((await ws.undo()).action, "undo");
  assert.equal(await ws.files.readText("a"), "2");
  await ws.redo();
  assert.equal(await ws.files.exists("b"), false);
  await assert.rejects(ws.fork({ names: [left.name] }), errors.AlreadyExistsError);
  await assert.rejects(ws.fork({ count: 0 }), errors.InvalidArgumentError);
});

test("conflicts are resolved by sides before anything is merged", async () => {
  await ws.commitEdits([edits.write("a", "base\n"), edits.write("b[1]", "base\n"), edits.write("c", "base\n")]);
  const [other] = await ws.fork({ count: 1 });
  assert.ok(other);
  await ws.commitEdits([edits.write("a", "ours\n"), edits.write("b[1]", "ours\n"), edits.write("c", "ours\n")]);
  await other.commitEdits([edits.write("a", "theirs\n"), edits.write("b[1]", "theirs\n"), edits.remove("c")]);
  await assert.rejects(ws.merge(other, { onConflict: "throw" }), errors.MergeConflictError);
  const merge = await ws.merge(other);
  assert.deepEqual(merge.conflicts.map((conflict) => conflict.path).sort(), ["a", "b[1]", "c"]);
  await assert.rejects(merge.apply(), errors.MergeConflictError);
  for (const conflict of merge.conflicts) conflict.resolve(conflict.path === "a" ? "ours" : "theirs");
  const text = async (side: "ours" | "theirs") => Buffer.from((await merge.conflicts[0]?.read(side)) ?? []).toString();
  assert.deepEqual([await text("ours"), await text("theirs")], ["ours\n", "theirs\n"]);
  await merge.apply();
  assert.ok(merge.isApplied);
  assert.deepEqual(
    [await ws.files.readText("a"), await ws.files.readText("b[1]"), await ws.files.exists("c")],
    ["ours\n", "theirs\n", false],
  );
});

test("a fork is completed into its target", async () => {
  await ws.commitEdits([edits.write("a", "1")]);
  const [fork] = await ws.fork({ count: 1 });
  assert.ok(fork);
  await fork.commitEdits([edits.write("b", "1")]);
  assert.ok((await fork.complete()).hasEnded);
  assert.ok(await ws.files.exists("b"));
  await assert.rejects(client.workspaces.get(fork.name), errors.NotFoundError);
  await client.workspaces.undelete(fork.name);
  assert.deepEqual((await collect(client.workspaces.list(fork.name))).map((one) => one.name), [fork.name]);
  const name = newName();
  await fork.rename(name);
  assert.equal(await fork.files.readText("b"), "1");
  await client.workspaces.delete(name);
});

test("the same idempotency key does a commit or a fork once", async () => {
  const idempotencyKey = newName();
  const first = await ws.commitEdits([edits.write("a", "1")], { idempotencyKey });
  const again = await ws.commitEdits([edits.write("a", "1")], { idempotencyKey });
  assert.equal(again.id, first.id);
  await assert.rejects(ws.commitEdits([edits.write("a", "2")], { idempotencyKey }), errors.RequestIdReusedError);
  const names = async (key: string): Promise<string[]> =>
    (await ws.fork({ count: 2, idempotencyKey: key })).map((fork) => fork.name);
  const forks = await names(`${idempotencyKey}-f`);
  assert.deepEqual(await names(`${idempotencyKey}-f`), forks);
  assert.ok((await names(`${idempotencyKey}-g`)).every((name) => !forks.includes(name)));
});

test("an episode records, ranks and compares steps", async () => {
  await ws.commitEdits([edits.write("a", "0")]);
  const episode = await client.episodes.begin(`${ws.name}/run`, { metadata: { k: "v" } });
  const root = await episode.record({ revision: "@", workspace: ws.name });
  const low = await episode.record({ parent: root, edits: [edits.write("a", "1")], reward: 1 });
  const high = await episode.record({ parent: root, edits: [edits.write("a", "2")], reward: 2 });
  assert.deepEqual((await episode.best()).map((step) => step.number), [high.number]);
  await episode.update([{ ...low, reward: 3, visits: 2, total: 5 }]);
  assert.deepEqual((await episode.best({ order: "reward" })).map((step) => step.number), [low.number]);
  assert.deepEqual((await episode.pathTo(high)).map((step) => step.number), [root.number, high.number]);
  const compared = await episode.compare(low, high);
  assert.deepEqual([compared.common?.number, compared.rewardDifference], [root.number, -1]);
  assert.equal((await collect(episode.steps({ parent: root }))).length, 2);
  assert.equal((await collect(episode.export())).length, 4);
  await episode.finish();
  await episode.release();
  assert.equal(await episode.drop(), 3);
});

test("a subscription returns operations from a position on", async () => {
  await using subscription = await client.events.subscribe();
  await ws.commitEdits([edits.write("a", "1")]);
  await ws.fork({ count: 1 });
  const operations = subscription[Symbol.asyncIterator]();
  const [first, second] = [(await operations.next()).value, (await operations.next()).value];
  assert.ok(first && second);
  assert.deepEqual([second.action, subscription.position], ["fork", second.sequence]);
  for await (const again of await client.events.subscribe({ after: first.sequence })) {
    assert.deepEqual(again, second);
    break;
  }
  assert.deepEqual(await client.events.get(second.sequence), second);
  for await (const found of client.events.list({ workspace: ws.name })) {
    assert.equal(found.sequence, first.sequence);
    break;
  }
  assert.equal((await client.events.undo(second.sequence)).reverts, second.sequence);
});

test("an exploration keeps the best attempt", async () => {
  await ws.commitEdits([edits.write("score", "0")]);
  const run = async (fork: Workspace): Promise<number> => {
    const number = Number(fork.name.split("-").at(-1));
    if (number === 2) throw new Error("attempt 2 fails");
    await fork.files.write("score", String(number));
    return number;
  };
  const best = await ws.explore({ count: 4, run, score: (_, number) => number });
  assert.deepEqual([best.score, best.result, await best.workspace.files.readText("score")], [4, 4, "4"]);
  assert.ok(best.snapshot);
  assert.equal(best.others.filter((other) => String(other.error).includes("attempt 2")).length, 1);
  assert.deepEqual((await collect(client.workspaces.list(`${ws.name}-`))).map((one) => one.name), [best.workspace.name]);
  await assert.rejects(
    ws.explore({ count: 2, run, score: () => Number.NaN }),
    (error: unknown) => error instanceof errors.ExploreError && error.attempts.length === 2,
  );
});

test("projects are apart and keys are limited", async () => {
  const name = newName();
  await client.projects.create(name);
  const inside = client.withOptions({ project: name });
  await inside.workspaces.create("only-here");
  await assert.rejects(client.workspaces.get("only-here"), errors.NotFoundError);
  assert.ok((await collect(client.projects.list())).some((project) => project.name === name));
  assert.equal((await client.projects.usage(name)).workspaces, 1);
  const made = await client.keys.create("reader", { scopes: ["read"], projects: [name] });
  const reader = server.client({ apiKey: made.text });
  assert.equal((await reader.keys.caller())?.agent, "reader");
  await assert.rejects(reader.workspaces.create("x"), errors.ForbiddenError);
  await client.keys.revoke(made.key);
  await assert.rejects(collect(reader.workspaces.list()), errors.KeyRevokedError);
  await client.projects.delete(name);
  await assert.rejects(collect(inside.workspaces.list()), errors.NotFoundError);
  assert.equal((await client.projects.undelete(name)).deleteTime, undefined);
});

test("a merge that waits for a person is listed and decided", async () => {
  await ws.commitEdits([edits.write("a", "base\n")]);
  const [fork] = await ws.fork({ count: 1 });
  assert.ok(fork);
  await ws.commitEdits([edits.write("a", "ours\n")]);
  await fork.commitEdits([edits.write("a", "theirs\n")]);
  assert.equal((await fork.publish()).merge?.how, "review");
  const [review] = await client.reviews.list({ target: ws.name });
  assert.ok(review);
  assert.deepEqual(review.conflicts.map((conflict) => conflict.path), ["a"]);
  await client.reviews.take(review.entry.id, "theirs");
  assert.equal(await ws.files.readText("a"), "theirs\n");
});
