/** Failures of the network and of the server: which calls are sent again, and the errors that callers see. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { type AddressInfo, createServer as createTcpServer } from "node:net";
import { after, before, test } from "node:test";

import { NodeSender } from "../src/http.js";
import { Amalgam, edits, errors } from "../src/index.js";
import { Proxy, TestServer, collect, newName, startServer } from "./kit.js";

let server: TestServer;
let proxy: Proxy;
let client: Amalgam;
before(async () => {
  server = await startServer();
  proxy = await new Proxy(server.address).listen();
  client = server.client({ url: proxy.url });
});
after(() => proxy.close());

for (const fault of ["drop-answer", "drop-request", "unavailable"] as const) {
  test(`a commit is done once after ${fault}`, async () => {
    const ws = await client.workspaces.create(newName());
    proxy.faults = [fault, fault];
    const done = await ws.commitEdits([edits.write("a", "1")], { message: "once" });
    assert.ok(done.isChanged);
    assert.deepEqual((await collect(ws.log())).map((one) => one.id), [done.id]);
  });
}

test("reads and whole files are sent again", async () => {
  const ws = await client.workspaces.create(newName());
  proxy.faults = ["drop-answer", "unavailable"];
  await ws.files.write("a", "1");
  proxy.faults = ["drop-answer", "drop-answer", "drop-answer"];
  assert.equal(await ws.files.readText("a"), "1");
  proxy.faults = ["drop-request"];
  assert.deepEqual((await collect(ws.files.grep("1"))).map((match) => match.path), ["a"]);
});

test("an unsafe call is reported and not sent again", async () => {
  const ws = await client.workspaces.create(newName());
  await ws.files.write("a", "1");
  async function* stream(): AsyncGenerator<Uint8Array> {
    yield Buffer.from("1");
  }
  const sent = proxy.requests;
  proxy.faults = ["drop-answer"];
  // A stream can be read once.
  const call = ws.files.write("d", stream());
  await assert.rejects(call, (error: unknown) => error instanceof errors.ConnectError && error.retryable);
  assert.equal(proxy.requests, sent + 1);
  assert.equal(await ws.files.readText("d"), "1");
});

test("a change of files whose answer is lost is sent again and made once", async () => {
  const ws = await client.workspaces.create(newName());
  await ws.files.write("a", "1");
  for (const call of [
    () => ws.files.edit("a", "1", "11"),
    () => ws.files.write("b", "1", { ifAbsent: true }),
    () => ws.files.apply([edits.write("c", "1")]),
    () => ws.files.rename("c", "d"),
  ]) {
    const sent = proxy.requests;
    proxy.faults = ["drop-answer"];
    await call();
    assert.equal(proxy.requests, sent + 2);
  }
  assert.equal(await ws.files.readText("a"), "11");
  assert.deepEqual((await ws.files.statMany(["b", "d"])).map((file) => file?.path), ["b", "d"]);
});

test("retries end after the given number", async () => {
  const sent = proxy.requests;
  proxy.faults = Array.from({ length: 9 }, () => "unavailable");
  await assert.rejects(collect(client.withOptions({ retries: 2 }).workspaces.list()), (error: unknown) => {
    assert.ok(error instanceof errors.UnavailableError);
    assert.deepEqual([error.code, error.status, error.retryable], [9004, 503, true]);
    return true;
  });
  assert.equal(proxy.requests, sent + 3);
  proxy.faults = [];
});

test("a signal ends a call, its retries and its waiting", async () => {
  await assert.rejects(client.workspaces.get("w", { signal: AbortSignal.abort() }), { name: "AbortError" });
  const controller = new AbortController();
  proxy.faults = ["unavailable"];
  const waiting = client.withOptions({ retryDelayMs: 60_000 }).workspaces.get("w", { signal: controller.signal });
  setTimeout(() => controller.abort(new Error("enough")), 50);
  await assert.rejects(waiting, { message: "enough" });
});

test("a subscription goes on after a lost connection", async () => {
  const direct = server.client();
  await using subscription = await client.events.subscribe();
  const operations = subscription[Symbol.asyncIterator]();
  const ws = await direct.workspaces.create(newName());
  assert.equal((await operations.next()).value?.action, "create");
  proxy.cut();
  const made = [await ws.commitEdits([edits.write("a", "1")]), await ws.commitEdits([edits.write("a", "2")])];
  const found = [(await operations.next()).value, (await operations.next()).value];
  assert.deepEqual(
    found.flatMap((operation) => operation?.changes.map((change) => change.after)),
    made.map((commit) => commit.id),
  );
});

test("a closed client ends its subscriptions and refuses calls", async () => {
  const own = server.client();
  const subscription = await own.events.subscribe();
  const waiting = subscription[Symbol.asyncIterator]().next();
  {
    await using closing = own;
    assert.ok(closing);
  }
  await assert.rejects(waiting, errors.CancelledError);
  await assert.rejects(own.workspaces.get("w"), errors.CancelledError);
});

test("a client works after the server was restarted", async () => {
  const own = new TestServer();
  try {
    await own.start();
    const patient = own.client({ retries: 8 });
    const ws = await patient.workspaces.create("w");
    await ws.files.write("a", "1");
    await own.stop();
    await assert.rejects(patient.withOptions({ retries: 0 }).workspaces.get("w"), (error: unknown) => {
      return error instanceof errors.ConnectError && error.suggestion.includes("AMALGAM_URL");
    });
    const [text] = await Promise.all([ws.files.readText("a"), own.start()]);
    assert.equal(text, "1");
    assert.ok((await ws.commit("after")).isChanged);
    const past = { scopes: ["read" as const], expires: new Date("2020-01-01T00:00:00Z") };
    await assert.rejects(patient.keys.create("past", past), errors.InvalidArgumentError);
    const old = await patient.keys.create("old", { scopes: ["read"], expires: new Date(Date.now() + 1000) });
    await new Promise((passed) => setTimeout(passed, 1100));
    await assert.rejects(own.client({ apiKey: old.text }).workspaces.get("w"), errors.KeyExpiredError);
    await assert.rejects(own.client({ apiKey: "" }).workspaces.get("w"), errors.AuthenticationError);
    await assert.rejects(ws.files.apply([edits.write("a", "x".repeat(17 << 20))]), errors.TooLargeError);
    await own.stop();
    await own.start("--rate", "5");
    const hasty = own.client({ retries: 0 });
    await assert.rejects(
      Promise.all(Array.from({ length: 50 }, () => hasty.workspaces.get("w"))),
      (error: unknown) => error instanceof errors.RateLimitedError && (error.retryAfterSeconds ?? 0) > 0,
    );
  } finally {
    await own.stop();
    own.remove();
  }
});

test("no answer is a timeout", async () => {
  const silent = createTcpServer(() => {});
  await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`;
  const own = new Amalgam({ url, timeoutMs: 100, retries: 0 });
  await assert.rejects(own.workspaces.get("w"), errors.RequestTimeoutError);
  await assert.rejects(own.withOptions({ timeoutMs: 60_000 }).workspaces.get("w", { timeoutMs: 50 }), errors.RequestTimeoutError);
  own.close();
  silent.close();
});

const wait = (milliseconds: number): Promise<void> => new Promise((passed) => setTimeout(passed, milliseconds));

test("an upload that takes longer than the timeout goes on while it moves", async () => {
  const ws = await server.client().workspaces.create(newName());
  async function* pieces(): AsyncGenerator<Uint8Array> {
    for (let number = 0; number < 5; number += 1) {
      await wait(150);
      yield Buffer.from(String(number));
    }
  }
  await ws.files.write("slow", pieces(), { timeoutMs: 500 });
  assert.equal(await ws.files.readText("slow"), "01234");
});

test("each piece of a long body is told as it is sent", async () => {
  const received: string[] = [];
  const other = createServer((incoming, answer) => {
    let bytes = 0;
    incoming.on("data", (piece: Buffer) => (bytes += piece.length));
    incoming.once("end", () => {
      received.push(`${incoming.headers["content-length"]} ${bytes}`);
      answer.end();
    });
  });
  await new Promise<void>((resolve) => other.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(other.address() as AddressInfo).port}/`;
  const sender = new NodeSender();
  const length = (3 << 20) + 1;
  const text = "é".repeat(length);
  for (const content of [new Uint8Array(length), new Blob([new Uint8Array(length)]), text]) {
    let count = 0;
    const onSent = (): void => void (count += 1);
    const { signal } = new AbortController();
    const response = await sender.send({ verb: "PUT", url, headers: {}, content, signal, onSent });
    await response.whole(() => {});
    assert.ok(count >= 4, String(count));
  }
  assert.deepEqual(received, [`${length} ${length}`, `${length} ${length}`, `${2 * length} ${2 * length}`]);
  sender.close();
  other.close();
});

test("a reader of a file may take longer than the timeout for each piece", async () => {
  const ws = await server.client().workspaces.create(newName());
  await ws.files.write("large", new Uint8Array(1 << 20));
  let [bytes, count] = [0, 0];
  for await (const piece of ws.files.stream("large", { timeoutMs: 500 })) {
    bytes += piece.length;
    count += 1;
    if (count <= 3) await wait(700);
  }
  assert.equal(bytes, 1 << 20);
});

test("a server that is not Amalgam is reported", async () => {
  const other = createServer((_, answer) => void answer.end("<hi>"));
  await new Promise<void>((resolve) => other.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(other.address() as AddressInfo).port}`;
  await assert.rejects(new Amalgam({ url }).workspaces.get("w"), errors.ProtocolError);
  other.close();
  other.closeAllConnections();
  assert.throws(() => new Amalgam({ url: "ftp://x" }), errors.InvalidArgumentError);
});
