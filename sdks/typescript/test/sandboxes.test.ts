/** Sandboxes of a real server: commands, terminals, forks and errors. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Amalgam, errors, withSandbox } from "../src/index.js";
import { Proxy, collect, newName, startServer } from "./kit.js";

const server = await startServer();
const admin = server.client();
const { text: apiKey } = await admin.keys.create("runner", { scopes: ["write", "run", "merge"] });
const client: Amalgam = server.client({ apiKey });
const skip = await isolation();

/** The reason for which the machine cannot isolate processes; false if it can. */
async function isolation(): Promise<string | false> {
  try {
    await withSandbox(client, {}, async () => undefined);
    return false;
  } catch (error) {
    if (error instanceof errors.NotIsolatedError) return error.message;
    throw error;
  }
}

test("a command returns its output and its exit code", { skip }, async () => {
  await using sandbox = await client.sandboxes.create({ envs: { COLOUR: "blue" } });
  const command = "echo $COLOUR $SIZE; pwd; echo wrong >&2; cat; exit 3";
  const done = await sandbox.commands.run(command, { envs: { SIZE: "4" }, stdin: Uint8Array.of(0x5c, 0x41, 0xff) });
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ["blue 4\n/workspace\n\\A\ufffd", "wrong\n", 3]);
  await sandbox.files.write("shared.txt", "from the client\n");
  assert.equal((await sandbox.commands.run("cat shared.txt")).stdout, "from the client\n");
  await assert.rejects(sandbox.commands.run("sleep 900", { timeoutMs: 200 }), errors.ProcessTimeoutError);
});

test("output is streamed by callbacks and by events", { skip }, async () => {
  await using sandbox = await client.sandboxes.create();
  const heard: string[] = [];
  const hear = (text: string): void => void heard.push(text);
  const done = await sandbox.commands.run("echo one; echo two >&2", { onStdout: hear, onStderr: hear });
  assert.deepEqual([heard.sort(), done.stdout, done.stderr], [["one\n", "two\n"], "one\n", "two\n"]);
  const events = await collect(sandbox.commands.stream("printf 'a\\303'; sleep 0.1; printf '\\244\\377\\\\'; exit 4"));
  assert.deepEqual([events[0]?.type, events.at(-1)?.type, events.at(-1)?.exitCode], ["started", "exit", 4]);
  assert.equal(events.map(({ data }) => data).join(""), "aä\ufffd\\");
  assert.deepEqual(
    events.flatMap(({ output }) => [...output]),
    [0x61, 0xc3, 0xa4, 0xff, 0x5c],
  );
  const again = sandbox.commands.get(events[0]?.commandId ?? "");
  assert.equal((await again.wait()).exitCode, 4);
  const late = sandbox.commands.run("sleep 900", { timeoutMs: 200, onStdout: hear });
  await assert.rejects(late, errors.ProcessTimeoutError);
});

test("output is complete although the connection is lost", { skip }, async () => {
  await using sandbox = await client.sandboxes.create();
  const proxy = await new Proxy(server.address).listen();
  try {
    const distant = await server.client({ url: proxy.url, apiKey, retryDelayMs: 10 }).sandboxes.get(sandbox.id);
    const script = "for i in 1 2 3; do echo $i; until test -e go$i; do sleep 0.01; done; done";
    let text = "";
    for await (const event of distant.commands.stream(script, { timeoutMs: 60_000 })) {
      text += event.data;
      if (event.type !== "stdout") continue;
      // The command waits for the file, so that the next line comes after the cut.
      proxy.cut();
      await sandbox.files.write(`go${event.data.trim()}`, "on\n");
    }
    assert.equal(text, "1\n2\n3\n");
  } finally {
    proxy.close();
  }
});

test("a command that cannot be started is reported", { skip }, async () => {
  await using sandbox = await client.sandboxes.create();
  const cwd = "/no/such/directory";
  await assert.rejects(sandbox.commands.run("true", { cwd }), errors.CommandFailedError);
  await assert.rejects(sandbox.commands.run("true", { cwd, onStdout: () => undefined }), errors.CommandFailedError);
});

test("a started command reads input and is killed", { skip }, async () => {
  await using sandbox = await client.sandboxes.create();
  const command = await sandbox.commands.start("cat; echo end", { stdinOpen: true });
  await command.write("one ");
  await command.write("two\n", { end: true });
  assert.equal((await command.wait()).stdout, "one two\nend\n");
  const asleep = await sandbox.commands.start("sleep 900");
  const running = (await sandbox.commands.list()).filter(({ isRunning }) => isRunning);
  assert.deepEqual(running.map(({ id }) => id), [asleep.id]);
  await sandbox.commands.kill(asleep.id, 9);
  assert.equal((await asleep.wait()).exitCode, 128 + 9);
  await assert.rejects(sandbox.commands.kill("cmd-none"), errors.CommandNotFoundError);
  const controller = new AbortController();
  const aborted = sandbox.commands.run("sleep 900", { signal: controller.signal });
  controller.abort(new Error("enough"));
  await assert.rejects(aborted, /enough/);
});

test("a terminal takes input and a size", { skip }, async () => {
  await using sandbox = await client.sandboxes.create();
  const terminal = await sandbox.pty.create({ shell: "/bin/sh" });
  await terminal.resize(100, 40);
  await terminal.write("stty size; exit 5\n");
  const output = Buffer.concat(await collect(terminal)).toString();
  assert.match(output, /40 100/);
  assert.equal(terminal.exitCode, 5);
  await assert.rejects(sandbox.pty.kill("pty-none"), errors.PTYNotFoundError);
});

test("a sandbox of a workspace leaves it in place", { skip }, async () => {
  const ws = await client.workspaces.create(newName());
  await ws.files.write("a.txt", "one\n");
  let id = "";
  {
    await using sandbox = await ws.sandbox({ lifetimeSeconds: 600 });
    id = sandbox.id;
    assert.equal((await sandbox.commands.run("cat a.txt; echo two > a.txt")).stdout, "one\n");
  }
  await assert.rejects(client.sandboxes.get(id), errors.SandboxNotFoundError);
  assert.equal(await ws.files.readText("a.txt"), "two\n");
  await ws.commit("both");
  const stdout = await withSandbox(client, { base: ws }, async (other) => {
    assert.notEqual(other.workspace, ws.name);
    return (await other.commands.run("cat a.txt")).stdout;
  });
  assert.equal(stdout, "two\n");
});

test("a running sandbox forks, and copies are deleted together", { skip }, async () => {
  await using origin = await client.sandboxes.create({ name: "origin" });
  await origin.commands.run("echo kept > note");
  const copies = await origin.fork({ count: 2, name: "copy" });
  for (const copy of copies) assert.equal((await copy.commands.run("cat note")).stdout, "kept\n");
  const listed = await collect(client.sandboxes.list({ state: "running", namePrefix: "copy" }));
  assert.deepEqual(listed.map(({ id }) => id).sort(), copies.map(({ id }) => id).sort());
  const deleted = await client.sandboxes.batchDelete([...copies.map(({ id }) => id), "sbx-none"]);
  assert.equal(deleted.succeeded.length, 2);
  assert.equal(deleted.failed[0]?.id, "sbx-none");
  assert.match((await origin.logs()).text, /running/);
  const before = origin.info.expiresAt;
  const after = (await origin.extend(600)).expiresAt;
  assert.ok(before && after && after > before);
  assert.ok((await origin.stats()).processes >= 0);
  assert.equal((await origin.refresh()).state, "running");
});

test("a port is reached by its URL without a key", { skip }, async () => {
  await using sandbox = await client.sandboxes.create();
  await sandbox.files.write("page.txt", "hello from inside\n");
  const serve = "python3 -um http.server 8123 --bind 127.0.0.1 >/tmp/log 2>&1 &";
  assert.equal((await sandbox.commands.run(`${serve} until grep -q Serv /tmp/log; do sleep 0.1; done`)).exitCode, 0);
  const { url, host, expiresAt } = await sandbox.openPort(8123, { seconds: 60 });
  assert.ok(expiresAt && url.endsWith(`${host}/`));
  assert.equal(await (await fetch(`${url}page.txt`)).text(), "hello from inside\n");
  assert.equal((await fetch(`http://${await sandbox.getHost(8124)}/`)).status, 502);
  await assert.rejects(sandbox.openPort(70_000), errors.InvalidArgumentError);
});

test("refusals have classes of their own", { skip }, async () => {
  assert.ok((await client.templates.list()).some(({ name }) => name === "host"));
  await assert.rejects(client.sandboxes.create({ template: "no-such-template" }), errors.TemplateNotFoundError);
  const limited = await client.sandboxes.create({ disk: "1g", memory: "256m", bestEffort: true });
  const enforcedBy = new Map(limited.info.limits.map(({ limit, enforcedBy }) => [limit, enforcedBy]));
  await limited.delete();
  assert.equal(enforcedBy.get("disk"), "quota");
  if (enforcedBy.get("memory") === "none") { // No cgroup is delegated on this machine.
    await assert.rejects(client.sandboxes.create({ memory: "256m" }), errors.LimitNotEnforcedError);
  }
  const { text } = await admin.keys.create("reader", { scopes: ["read"] });
  await assert.rejects(server.client({ apiKey: text }).sandboxes.create(), errors.ForbiddenError);
});

test("a list of sandboxes is whole although the loop deletes them", async () => {
  const ids = Array.from({ length: 250 }, (_, number) => `sbx-${number}`);
  let left = [...ids];
  const answer = async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const { pathname, searchParams } = new URL(String(input));
    if (init?.method === "DELETE") {
      left = left.filter((id) => id !== pathname.split("/").at(-1));
      return Response.json({});
    }
    const [page, limit] = [Number(searchParams.get("page")), Number(searchParams.get("limit"))];
    return Response.json({ items: left.slice((page - 1) * limit, page * limit).map((id) => ({ id })) });
  };
  await using mocked = new Amalgam({ url: "http://127.0.0.1:1", fetch: answer });
  const seen: string[] = [];
  for await (const sandbox of mocked.sandboxes.list()) {
    seen.push(sandbox.id);
    await sandbox.delete();
  }
  assert.deepEqual([seen, left], [ids, []]);
});

test("a policy is set, explained, checked and undone", async () => {
  const text = 'default = "R"\n\n[[rule]]\nagents = ["ann"]\npaths = ["src/**"]\nlevel = "RW"\n';
  assert.equal((await admin.policy.show()).text, "");
  await assert.rejects(admin.policy.undo(), errors.NothingToRevertError);
  assert.equal((await admin.policy.set(text, { dryRun: true })).operation, undefined);
  const done = await admin.policy.set(text);
  assert.ok(done.isChanged && done.operation);
  assert.equal((await admin.policy.show()).text, text);
  const ann = await admin.policy.explain("src/a.ts", { agent: "ann" });
  assert.deepEqual([ann.level, ann.line, ann.patterns], ["RW", 3, ["src/**"]]);
  assert.deepEqual((await admin.policy.explain("src/a.ts", { agent: "bob" })).acts, ["read"]);
  assert.equal((await admin.policy.test('default = "RA"', "a", { agent: "bob" })).level, "RA");
  assert.equal((await admin.policy.check('default = "X"'))[0]?.line, 1);
  assert.equal((await admin.policy.history()).length, 1);
  await admin.policy.undo();
  assert.equal((await admin.policy.show()).text, "");
});

test("a command runs on a fork and its changes are merged", { skip }, async () => {
  const ws = await client.workspaces.create(newName());
  await ws.files.write("a.txt", "one\n");
  await ws.commit("first");
  const stages: string[] = [];
  const done = await client.sandboxes.runOnFork(ws, "cat a.txt; echo two >> a.txt", {
    onStage: (stage) => void stages.push(stage),
  });
  assert.deepEqual([done.exitCode, done.stdout, done.isMerged, done.isKept], [0, "one\n", true, false]);
  assert.deepEqual(stages, ["update", "fork", "sandbox", "run", "end", "detect", "merge"]);
  assert.deepEqual(
    done.changes.map(({ path }) => path),
    ["a.txt"],
  );
  assert.equal(await ws.files.readText("a.txt"), "one\ntwo\n");
  const failed = await client.sandboxes.runOnFork(ws.name, "exit 4", { keep: true });
  assert.deepEqual([failed.exitCode, failed.isMerged, failed.isKept], [4, false, true]);
});

test("attempts run in sandboxes, and the best one is kept", { skip }, async () => {
  const ws = await client.workspaces.create(newName());
  await ws.files.write("start", "5");
  await ws.commit("start");
  const best = await ws.explore({
    count: 3,
    sandbox: { image: "host", name: "explored" },
    run: async (fork, sandbox) => {
      const number = Number(fork.name.split("-").at(-1));
      return (await sandbox.commands.run(`echo $(($(cat start) * ${number})) > result; exit ${number % 2}`)).exitCode;
    },
    score: async (fork, code) => Number(await fork.files.readText("result")) - 100 * code,
  });
  assert.deepEqual([best.result, best.score, best.others.length], [0, 10, 2]);
  const left = await collect(client.sandboxes.list());
  assert.deepEqual(left.filter(({ info }) => info.name === "explored"), []);
});
