/** A client without a URL: the local store of the user, and its process. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";

import { Amalgam, edits, errors } from "../src/index.js";
import { collect, newName, program, startServer } from "./kit.js";

process.env["AMALGAM_BIN"] = program;
delete process.env["AMALGAM_URL"];
const directory = mkdtempSync(join(tmpdir(), "amalgam-ts-local-"));
const store = join(directory, "store");

function command(...words: string[]): string {
  return execFileSync(program, ["--store", store, ...words], { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
}

after(() => {
  command("stop", "--force");
  rmSync(directory, { recursive: true, force: true });
});

test("the process is started by the first call, and the command sees the same store", async () => {
  await using client = new Amalgam({ store });
  const name = newName();
  const ws = await client.workspaces.create(name);
  await ws.files.write("a.txt", "one\n");
  const { id } = await ws.commit("first");
  assert.equal(await ws.files.readText("a.txt"), "one\n");
  assert.match(command("log", `${name}@`), /first/);
  assert.deepEqual((await collect(client.workspaces.list(name))).map((found) => found.name), [name]);
  assert.equal((await collect(ws.log()))[0]?.id, id);
});

test("an author with other characters has dashes for them", async () => {
  process.env["AMALGAM_AUTHOR"] = "Jörg 李🙂";
  try {
    await using client = new Amalgam({ store });
    const ws = await client.workspaces.create(newName());
    await ws.commitEdits([edits.write("a", "1")]);
    assert.deepEqual((await collect(ws.log())).map((snapshot) => snapshot.author), ["J-rg---"]);
  } finally {
    delete process.env["AMALGAM_AUTHOR"];
  }
});

test("a process that has ended is started again by the next call", async () => {
  await using client = new Amalgam({ store, retryDelayMs: 20 });
  const ws = await client.workspaces.create(newName());
  await ws.files.write("a.txt", "one\n");
  await ws.commit("first");
  command("stop", "--force");
  assert.equal(await ws.files.readText("a.txt"), "one\n");
});

test("calls side by side start one process", async () => {
  command("stop", "--force");
  await using client = new Amalgam({ store });
  const names = Array.from({ length: 20 }, newName);
  await Promise.all(names.map((name) => client.workspaces.create(name)));
  const found = new Set((await collect(client.workspaces.list("test-"))).map((one) => one.name));
  assert.ok(names.every((name) => found.has(name)));
});

test("a directory is captured without being attached, secrets included", async () => {
  const source = join(directory, "source");
  mkdirSync(source);
  writeFileSync(join(source, "a.txt"), "a\n");
  writeFileSync(join(source, ".env"), "TOKEN=x\n");
  await using client = new Amalgam({ store });
  const ws = await client.workspaces.create(newName(), { source });
  assert.deepEqual((await collect(ws.files.list(""))).map((entry) => entry.path).sort(), [".env", "a.txt"]);
});

test("a mounted workspace is a directory until the end of its block", async (context) => {
  await using client = new Amalgam({ store });
  const ws = await client.workspaces.create(newName());
  await ws.files.write("a.txt", "one\n");
  const path = join(directory, "mount");
  let mounted = false;
  try {
    await using mount = await ws.mount(path);
    mounted = true;
    assert.equal(readFileSync(join(mount.path, "a.txt"), "utf8"), "one\n");
    writeFileSync(join(mount.path, "b.txt"), "two\n");
    assert.equal(await ws.files.readText("b.txt"), "two\n");
  } catch (error) {
    if (mounted || !(error instanceof errors.AmalgamError)) throw error;
    return context.skip(`this machine mounts nothing: ${error.message}`);
  }
  assert.deepEqual(readdirSync(path), []);
  assert.equal(await ws.files.readText("b.txt"), "two\n");
});

test("what needs the local store says so on a server", async () => {
  const server = await startServer();
  await using client = server.client();
  const ws = await client.workspaces.create(newName());
  await assert.rejects(ws.mount(join(directory, "no")), errors.NotPossibleError);
});

test("a missing program, and a client with both a store and a URL, are told", async () => {
  assert.throws(() => new Amalgam({ store, url: "http://127.0.0.1:1" }), errors.InvalidArgumentError);
  assert.throws(() => new Amalgam({ fetch }), errors.InvalidArgumentError);
  process.env["AMALGAM_BIN"] = join(directory, "missing");
  try {
    await using client = new Amalgam({ store: join(directory, "other"), retries: 0 });
    await assert.rejects(client.workspaces.create("a"), (error) => {
      assert.ok(error instanceof errors.ConnectError);
      assert.match(error.suggestion, /AMALGAM_BIN/);
      return true;
    });
  } finally {
    process.env["AMALGAM_BIN"] = program;
  }
});
