/** The package itself: its low layer fits the server, its examples run, its version is one. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { before, test } from "node:test";
import { promisify } from "node:util";

import ts from "typescript";

import { VERSION, errors } from "../src/index.js";
import { type TestServer, startServer } from "./kit.js";

const run = promisify(execFile);
const ROOT = new URL("../..", import.meta.url).pathname;

let server: TestServer;
let document: { components: { schemas: Record<string, { properties: Record<string, unknown> }> } };
before(async () => {
  server = await startServer();
  const answer = await fetch(`${server.url}/api/v1/openapi.json`, { headers: { authorization: `Bearer ${server.key}` } });
  document = (await answer.json()) as typeof document;
});

test("the generated layer is that of the server's document", async () => {
  const source = join(server.directory, "openapi.json");
  writeFileSync(source, JSON.stringify(document));
  const { stdout } = await run("node", [join(ROOT, "scripts/generate.mjs"), "--print", source], { maxBuffer: 1 << 24 });
  const current = readFileSync(join(ROOT, "src/generated/api.ts"), "utf8");
  assert.ok(stdout === current, "not current: run scripts/generate.mjs with the document of a server");
});

test("every error of the server has a class", () => {
  const error = document.components.schemas["Error"]?.properties["error"] as {
    properties: { name: { enum: string[] } };
  };
  for (const name of error.properties.name.enum) {
    const made = errors.errorFromBody({ error: { name, code: 1, message: "m", details: {} } }, 400);
    assert.notEqual(made.constructor, errors.AmalgamError, name);
    assert.equal(made.name, made.constructor.name);
  }
});

test("the version is that of package.json", () => {
  const told = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")) as { version: string };
  assert.equal(told.version, VERSION);
});

for (const name of readdirSync(join(ROOT, "dist/examples")).filter((name) => name.endsWith(".js"))) {
  test(`the example ${name} runs`, async () => {
    const env = { ...process.env, AMALGAM_URL: server.url, AMALGAM_API_KEY: server.key };
    const { stdout } = await run("node", [join(ROOT, "dist/examples", name)], { env });
    assert.match(stdout, /\S/);
  });
}

test("a reference is written, and everything that is exported has a comment", async () => {
  const file = join(server.directory, "reference.md");
  await run("node", [join(ROOT, "scripts/reference.mjs"), file]);
  const text = readFileSync(file, "utf8");
  for (const word of ["### `Workspace`", "#### `sandbox`", "#### `explore`", "### `errors.ProcessTimeoutError`"]) {
    assert.ok(text.includes(word), word);
  }
});

test("the programs of the README run one after another", async () => {
  const text = readFileSync(join(ROOT, "README.md"), "utf8");
  const blocks = [...text.matchAll(/^```ts\n(.*?)^```/gms)].map((found) => found[1] ?? "");
  assert.ok(blocks.length >= 7);
  const source = blocks.join("\n").replace("@amalgam/sdk", new URL("../src/index.js", import.meta.url).href);
  const options = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ES2022 };
  const program = join(server.directory, "readme.mjs");
  writeFileSync(program, ts.transpileModule(source, { compilerOptions: options }).outputText);
  const env = { ...process.env, AMALGAM_URL: server.url, AMALGAM_API_KEY: server.key };
  const { stdout } = await run("node", [program], { env });
  assert.match(stdout, /modified src\/auth.py/);
});
