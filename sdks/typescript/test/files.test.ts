/** Files of a workspace, through a real server. */
import assert from "node:assert/strict";
import { openAsBlob } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { before, beforeEach, test } from "node:test";

import { Amalgam, type Workspace, edits, errors } from "../src/index.js";
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

test("a file that was written is read with the same bytes", async () => {
  const data = new Uint8Array(1_000_000).map((_, index) => index % 251);
  const written = await ws.files.write("src/data.bin", data, { mode: 0o755 });
  assert.deepEqual([written.path, written.size], ["src/data.bin", data.length]);
  assert.deepEqual(Buffer.compare(await ws.files.read("src/data.bin"), data), 0);
  const found = await ws.files.stat("src/data.bin");
  assert.deepEqual([found.kind, found.size, found.mode, found.etag], ["file", data.length, 0o755, written.etag]);
  assert.equal(Buffer.compare(Buffer.concat(await collect(ws.files.stream("src/data.bin"))), data), 0);
});

test("blobs and streams are written", async () => {
  const path = join(server.directory, "blob");
  await writeFile(path, "from a blob");
  assert.equal((await ws.files.write("blob", await openAsBlob(path))).size, 11);
  async function* pieces(): AsyncGenerator<Uint8Array> {
    yield Buffer.from("one ");
    yield Buffer.from("two");
  }
  await ws.files.write("stream", pieces());
  assert.equal(await ws.files.readText("stream"), "one two");
});

test("more paths than one call takes have their metadata in order", async () => {
  await ws.files.apply([edits.write("a", "1"), edits.write("b", "22")]);
  const missing = Array.from({ length: 1500 }, (_, number) => `missing-${number}`);
  const found = await ws.files.statMany(["a", ...missing, "b"]);
  assert.deepEqual([found.length, found[0]?.size, found[1], found.at(-1)?.size], [1502, 1, undefined, 2]);
});

test("a range of a file is read", async () => {
  await ws.files.write("digits", "0123456789");
  for (const [offset, length, expected] of [
    [0, 3, "012"],
    [7, undefined, "789"],
    [8, 10, "89"],
    [10, 5, ""],
    [3, 0, ""],
  ] as const) {
    const range = length === undefined ? { offset } : { offset, length };
    assert.equal(Buffer.from(await ws.files.read("digits", range)).toString(), expected);
    assert.equal(Buffer.concat(await collect(ws.files.stream("digits", range))).toString(), expected);
  }
});

test("any name survives every kind of call", async () => {
  for (const path of ["with space", "50%", "a?b#c", "Käse/\u2028line", "back\\slash", "a+b&c=d", "\udcff\udcfe", "~/@x", "%2e%2e"]) {
    await ws.files.write(path, "one\n");
    assert.equal((await ws.files.stat(path)).path, path);
    assert.ok((await collect(ws.files.list("", { recursive: true }))).some((file) => file.path === path));
    await ws.files.edit(path, "one", "two");
    assert.deepEqual((await collect(ws.files.grep("two"))).map((found) => found.path), [path]);
    assert.ok((await ws.status()).changes.some((change) => change.path === path));
    const { snapshot } = await ws.commit("any name");
    assert.ok(snapshot);
    assert.equal((await collect(ws.history.versions(path)))[0]?.path, path);
    assert.deepEqual((await ws.history.blame(path))[0]?.lines, ["two"]);
    await ws.files.rename(path, "plain");
    assert.equal(await ws.files.readText(path, { revision: snapshot }), "two\n");
    await ws.files.remove("plain");
  }
});

test("a path that could lead elsewhere is refused before it is sent", async () => {
  // Port 9 is not open: a request would be an error of another kind.
  const closed = new Amalgam({ url: "http://127.0.0.1:9", retries: 0 });
  await assert.rejects(closed.workspaces.get("w"), errors.ConnectError);
  for (const path of ["../keys", "a/../b", "/etc", "a//b", "a/", "./a", "..", ""]) {
    await assert.rejects(ws.files.read(path), errors.InvalidArgumentError, path);
    await assert.rejects(ws.files.remove(path), errors.InvalidArgumentError, path);
  }
});

test("an edit replaces exactly one place", async () => {
  await ws.files.write("a.py", "x = 1\ny = 1\n");
  assert.equal((await ws.files.edit("a.py", "x = 1", "x = 2")).replacements, 1);
  await assert.rejects(ws.files.edit("a.py", "=", "=="), (error: unknown) => {
    assert.ok(error instanceof errors.NotUniqueError);
    assert.equal(error.details["count"], "2");
    assert.ok(error.suggestion && error.requestId);
    return true;
  });
  assert.equal((await ws.files.edit("a.py", "=", "==", { replaceAll: true })).replacements, 2);
  await ws.files.patch("a.py", "@@ -1,2 +1,2 @@\n-x == 2\n+x == 3\n y == 1\n");
  assert.equal(await ws.files.readText("a.py"), "x == 3\ny == 1\n");
  await assert.rejects(ws.files.patch("a.py", "@@ -1 +1 @@\n-nothing\n+something\n"), errors.PatchFailedError);
});

test("conditions protect a file that changed", async () => {
  const first = await ws.files.write("a", "1", { ifAbsent: true });
  await assert.rejects(ws.files.write("a", "2", { ifAbsent: true }), errors.AlreadyExistsError);
  const second = await ws.files.write("a", "2", { ifMatch: first.etag });
  await assert.rejects(ws.files.write("a", "3", { ifMatch: first.etag }), errors.StaleFileError);
  await ws.files.remove("a", { ifMatch: second.etag });
});

test("directories, symlinks and attributes", async () => {
  assert.equal((await ws.files.mkdir("a/b/c")).kind, "directory");
  await assert.rejects(ws.files.mkdir("a/b/c", { parents: false }), errors.AlreadyExistsError);
  assert.equal((await ws.files.symlink("a/link", "../b\\c")).linkTarget, "../b\\c");
  await ws.files.write("a/f", "1");
  await ws.files.setAttributes("a/f", { mode: 0o600, xattrs: { "user.k": Buffer.from("v") } });
  const found = await ws.files.stat("a/f");
  assert.deepEqual([found.mode, found.xattrs], [0o600, ["user.k"]]);
  await assert.rejects(ws.files.remove("a"), /not empty/);
  await ws.files.remove("a", { recursive: true });
  await ws.files.remove("a", { missingOk: true });
  await assert.rejects(ws.files.remove("a"), errors.NotFoundError);
});

test("a list pages by itself", async () => {
  const names = Array.from({ length: 1203 }, (_, number) => `f${String(number).padStart(4, "0")}`);
  await ws.files.apply(names.map((name) => edits.write(name, "")));
  assert.deepEqual((await collect(ws.files.list())).map((file) => file.path), names);
  assert.equal((await collect(ws.files.glob("f0*"))).length, 1000);
  assert.equal((await collect(ws.files.glob("f*", { limit: 7 }))).length, 7);
});

test("edits are made all or none", async () => {
  await ws.files.write("old", "1");
  await ws.files.apply([
    edits.write("a/new", Buffer.from([0, 255])),
    edits.replace("old", "1", "2"),
    edits.rename("old", "b/moved"),
    edits.symlink("l", "a/new"),
    edits.mkdir("d"),
    edits.attributes("d", { mode: 0o700 }),
    edits.state("k", { n: 1 }),
    edits.write("a/new", "!", { offset: 2 }),
  ]);
  assert.deepEqual([...(await ws.files.read("a/new"))], [0, 255, 33]);
  assert.equal(await ws.files.readText("b/moved"), "2");
  assert.deepEqual(await ws.state.get("k"), { n: 1 });
  await assert.rejects(ws.files.apply([edits.write("c", "1"), edits.remove("missing")]), errors.NotFoundError);
  assert.equal(await ws.files.exists("c"), false);
});

test("a search filters by path and glob", async () => {
  await ws.files.write("src/a.py", "needle\nNeedle\n");
  await ws.files.write("src/a.txt", "needle\n");
  await ws.files.write("other/a.py", "needle.*\n");
  const found = await collect(ws.files.grep("^needle$", { paths: ["src"], globs: ["*.py"] }));
  assert.deepEqual(found.map(({ path, line }) => [path, line]), [["src/a.py", 1]]);
  assert.equal((await collect(ws.files.grep("NEEDLE", { ignoreCase: true }))).length, 4);
  assert.deepEqual((await collect(ws.files.grep("needle.*", { fixed: true }))).map((one) => one.path), ["other/a.py"]);
  await assert.rejects(collect(ws.files.grep("(")), errors.InvalidArgumentError);
});

test("a watch reports changes until its signal is aborted", async () => {
  const controller = new AbortController();
  const watch = ws.files.watch("", { signal: controller.signal });
  assert.deepEqual((await watch.next()).value, []);
  await ws.files.write("seen", "1");
  const changes = (await watch.next()).value;
  assert.ok(changes && changes.some((change) => change.path === "seen"));
  const waiting = watch.next();
  controller.abort();
  await assert.rejects(waiting, { name: "AbortError" });
});

test("state values are JSON, have etags, and page", async () => {
  const first = await ws.state.set("plan/1", { done: [1, null, "ä"] });
  assert.deepEqual(await ws.state.get("plan/1"), { done: [1, null, "ä"] });
  assert.equal(await ws.state.get("nothing"), undefined);
  await assert.rejects(ws.state.set("plan/1", 1, { ifAbsent: true }), errors.AlreadyExistsError);
  await ws.state.set("plan/1", false, { ifMatch: first.etag });
  await assert.rejects(ws.state.set("plan/1", 3, { ifMatch: first.etag }), errors.StaleFileError);
  assert.deepEqual((await collect(ws.state.list("plan/"))).map((one) => one.value), [false]);
  await ws.state.delete("plan/1");
  await ws.state.delete("plan/1", { missingOk: true });
  await assert.rejects(ws.state.delete("plan/1"), errors.NotFoundError);
});
