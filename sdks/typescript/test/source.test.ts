/** Directories of this machine that become workspaces. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { linkSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";

import { errors } from "../src/index.js";
import { pushDirectory } from "../src/push.js";
import { globExpression } from "../src/source.js";
import { collect, newName, program, startServer } from "./kit.js";

const server = await startServer();
const client = server.client();
const place = mkdtempSync(join(tmpdir(), "amalgam-source-"));
process.env["AMALGAM_UPLOAD_CACHE"] = join(place, "cache");
after(() => rmSync(place, { recursive: true, force: true }));
beforeEach(() => (process.env["AMALGAM_BIN"] = program));

function makeSource(name: string, megabytes: number): string {
  const source = join(place, name);
  mkdirSync(join(source, "src", "empty"), { recursive: true });
  writeFileSync(join(source, "src", "run.sh"), "#!/bin/sh\n", { mode: 0o755 });
  writeFileSync(join(source, "big.bin"), randomBytes(megabytes << 20));
  symlinkSync("src/run.sh", join(source, "link"));
  writeFileSync(join(source, ".env"), "TOKEN=1\n");
  writeFileSync(join(source, "notes.txt"), "-----BEGIN OPENSSH PRIVATE KEY-----\n");
  return source;
}

test("a directory becomes a workspace, and its secrets are not sent unasked", async () => {
  const source = makeSource("small", 1);
  const name = newName();
  await assert.rejects(client.workspaces.create(name, { source }), (error: unknown) => {
    assert.ok(error instanceof errors.SecretsFoundError);
    assert.deepEqual(error.details["paths"], [".env", "notes.txt"]);
    return true;
  });
  await assert.rejects(client.workspaces.get(name), errors.NotFoundError);
  const ws = await client.workspaces.create(name, { source, exclude: ["*.txt"], allowSecrets: true });
  const files = await collect(ws.files.list("", { recursive: true }));
  const expected = [".env", "big.bin", "link", "src", "src/empty", "src/run.sh"];
  assert.deepEqual(files.map(({ path }) => path), expected);
  assert.equal((await ws.files.stat("src/run.sh")).mode, 0o755);
  assert.equal((await ws.status()).changes.length, 0);
  await assert.rejects(client.workspaces.create(newName(), { source: join(place, "none") }), errors.InvalidArgumentError);
});

test("a server gets only what it lacks of a directory", async () => {
  const source = makeSource("large", 5);
  linkSync(join(source, "src/run.sh"), join(source, "src/twin"));
  const exclude = [".env", "*.txt"];
  const ws = await client.workspaces.create(newName(), { source, exclude, agent: "ann" });
  assert.equal(ws.info.agent, "ann");
  assert.deepEqual(Buffer.from(await ws.files.read("big.bin")), readFileSync(join(source, "big.bin")));
  assert.equal((await ws.files.stat("src/run.sh")).links, 2);
  assert.deepEqual(await collect(client.workspaces.list("upload-")), []);
  writeFileSync(join(source, "src/run.sh"), "changed\n");
  const again = await pushDirectory(source, exclude, client.options, false);
  assert.ok(again && again.sentBytes < 10_000, String(again?.sentBytes));
  await client.workspaces.delete(again.workspace);
  process.env["AMALGAM_BIN"] = join(place, "missing");
  const whole = await client.workspaces.create(newName(), { source, exclude });
  assert.equal(await whole.files.readText("src/run.sh"), "changed\n");
  assert.equal((await whole.files.stat("src/run.sh")).links, 1);
});

test("a symlink whose target is not UTF-8 keeps its target", async () => {
  const source = join(place, "bytes");
  mkdirSync(source);
  symlinkSync(Buffer.from([0x61, 0xe9]), join(source, "l"));
  symlinkSync("é\\x41", join(source, "plain"));
  const ws = await client.workspaces.create(newName(), { source });
  assert.equal((await ws.files.stat("l")).linkTarget, "a\udce9");
  assert.equal((await ws.files.stat("plain")).linkTarget, "é\\x41");
});

test("globs fit names and paths", () => {
  const cases: [string, string, boolean][] = [
    ["*.py", "a.py", true],
    ["*.py", "a.pyc", false],
    ["a?c", "abc", true],
    ["[!a]b", "ab", false],
    ["[a-c]b", "bb", true],
    ["a.b", "axb", false],
    ["src/*", "src/deep/x", true],
    ["a+(b)", "a+(b)", true],
  ];
  for (const [glob, name, fits] of cases) assert.equal(globExpression(glob).test(name), fits, `${glob} ${name}`);
});
