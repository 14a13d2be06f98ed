// Measures the TypeScript SDK and the tool list of the MCP server beside their bars: `make bench-sdks`.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { Amalgam } from "../typescript/dist/src/index.js";

const isQuick = process.argv.includes("--quick");
const program = process.env.AMALGAM_BIN ?? "amalgam";

const rows = [];

function row(name, value, unit, bar) {
  const isMet = value <= bar;
  const verdict = isMet ? "met" : "missed";
  rows.push({ name, value, unit, bar: `<= ${bar}`, met: isMet });
  console.log(`${name.padEnd(58)} ${`${value.toFixed(2)} ${unit}`.padStart(18)}   <= ${bar} ${unit}   ${verdict}`);
}

async function editAndCommit(ws, rounds, where) {
  await ws.files.write("a.py", "value = 0\n");
  await ws.commit("begin");
  const times = [];
  for (let number = 0; number < rounds; number += 1) {
    const began = performance.now();
    await ws.files.edit("a.py", `value = ${number}\n`, `value = ${number + 1}\n`);
    await ws.commit("step", { buffered: true });
    times.push(performance.now() - began);
  }
  times.sort((one, other) => one - other);
  row(`files.edit + commit, TypeScript, ${where}, p50`, times[Math.floor(times.length / 2)], "ms", 2);
}

/** Counts the tokens of the tool list, as a client puts it into the context of a model. */
async function countTokens(directory) {
  let encode;
  try {
    const modules = createRequire(join(process.env.GPT_TOKENIZER_ROOT ?? process.cwd(), "index.js"));
    ({ encode } = modules("gpt-tokenizer"));
  } catch (error) {
    console.log(`the row of MCP is left out: ${error.message}`);
    return;
  }
  const server = spawn(program, ["--store", join(directory, "none"), "mcp"], { stdio: ["pipe", "pipe", "ignore"] });
  const send = (message) => server.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
  const clientInfo = { name: "bench", version: "1" };
  send({ id: 1, method: "initialize", params: { protocolVersion: "2025-06-18", capabilities: {}, clientInfo } });
  send({ method: "notifications/initialized" });
  send({ id: 2, method: "tools/list", params: {} });
  for await (const line of createInterface(server.stdout)) {
    const answer = JSON.parse(line);
    if (answer.id !== 2) continue;
    row("MCP: tokens of the tool list", encode(JSON.stringify(answer.result.tools)).length, "tokens", 2000);
    break;
  }
  server.stdin.end();
}

const directory = mkdtempSync(join(tmpdir(), "amalgam-bench-"));
const data = join(directory, "data");
const key = execFileSync(program, ["key", "create", "bench", "--scope", "admin", "--data", data], {
  encoding: "utf8",
  stdio: ["ignore", "pipe", "ignore"],
}).trim();
const server = spawn(program, ["serve", "--data", data, "--listen", "127.0.0.1:0"], { stdio: ["ignore", "ignore", "pipe"] });
const ended = new Promise((resolve) => server.once("exit", resolve));
try {
  let url;
  for await (const line of createInterface(server.stderr)) {
    url = /listening on (http:\/\/\S+)/.exec(line)?.[1];
    if (url) break;
  }
  server.stderr.resume();
  const client = new Amalgam({ url, apiKey: key });
  const rounds = isQuick ? 20 : 500;
  await editAndCommit(await client.workspaces.create("edits"), rounds, "loopback");
  client.close();
  const store = join(directory, "store");
  const local = new Amalgam({ store });
  await editAndCommit(await local.workspaces.create("edits"), rounds, "local");
  local.close();
  execFileSync(program, ["--store", store, "stop"], { stdio: "ignore" });
  await countTokens(directory);
} finally {
  server.kill("SIGTERM");
  await ended;
  rmSync(directory, { recursive: true, force: true });
}
const place = process.argv.indexOf("--json") + 1;
if (place > 0) {
  const file = process.argv[place];
  const measured = JSON.parse(readFileSync(file, "utf8"));
  writeFileSync(file, JSON.stringify({ ...measured, rows: [...measured.rows, ...rows] }, undefined, 1));
}
