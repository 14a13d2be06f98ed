/** Starts real servers in temporary directories, and a proxy that fails requests on command. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { accessSync, constants, mkdtempSync, rmSync } from "node:fs";
import { createServer, request } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after } from "node:test";

import { Amalgam, type ClientOptions } from "../src/index.js";

export const program = findProgram();

function findProgram(): string {
  const repository = join(import.meta.dirname ?? new URL(".", import.meta.url).pathname, "../../../..");
  const target = process.env["CARGO_TARGET_DIR"] ?? join(repository, "target");
  const program = process.env["AMALGAM_BIN"] ?? join(target, "debug/amalgam");
  try {
    accessSync(program, constants.X_OK);
  } catch {
    throw new Error(`${program} is no program: build it with \`cargo build -p amalgam-cli\`, or set AMALGAM_BIN`);
  }
  return program;
}

/** A server that can be stopped and started again with the same data and address. */
export class TestServer {
  readonly directory = mkdtempSync(join(tmpdir(), "amalgam-ts-"));
  readonly key: string;
  address = "127.0.0.1:0";
  private process: ChildProcess | undefined;
  private readonly program = program;

  constructor() {
    const words = ["key", "create", "tester", "--scope", "admin", "--data", this.data];
    this.key = execFileSync(this.program, words, { encoding: "utf8" }).trim();
  }

  private get data(): string {
    return join(this.directory, "data");
  }

  get url(): string {
    return `http://${this.address}`;
  }

  async start(...words: string[]): Promise<void> {
    const process = spawn(this.program, ["serve", "--data", this.data, "--listen", this.address, ...words], {
      stdio: ["ignore", "ignore", "pipe"],
    });
    this.process = process;
    const seen: string[] = [];
    const lines = createInterface(process.stderr);
    for await (const line of lines) {
      seen.push(line);
      const found = /listening on http:\/\/(\S+)/.exec(line)?.[1];
      if (found) {
        this.address = found;
        // A full pipe would stop the server.
        process.stderr.resume();
        return;
      }
    }
    throw new Error(`the server did not start: ${seen.join("\n")}`);
  }

  async stop(): Promise<void> {
    const process = this.process;
    this.process = undefined;
    if (!process || process.exitCode !== null) return;
    const ended = new Promise((resolve) => process.once("exit", resolve));
    process.kill("SIGTERM");
    await ended;
  }

  remove(): void {
    rmSync(this.directory, { recursive: true, force: true });
  }

  client(options: ClientOptions = {}): Amalgam {
    return new Amalgam({ url: this.url, apiKey: this.key, retryDelayMs: 20, ...options });
  }
}

const servers: TestServer[] = [];
after(async () => {
  for (const server of servers) {
    await server.stop();
    server.remove();
  }
});

/** Returns a server that runs until the tests of the file are over. */
export async function startServer(): Promise<TestServer> {
  const server = new TestServer();
  servers.push(server);
  await server.start();
  return server;
}

export function newName(): string {
  return `test-${randomUUID().slice(0, 12)}`;
}

export async function collect<T>(found: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const one of found) all.push(one);
  return all;
}

export type Fault = "drop-request" | "drop-answer" | "unavailable";

/** Passes requests on to a server, and fails some of them on command. */
export class Proxy {
  /** What happens to the next requests. */
  faults: Fault[] = [];
  requests = 0;
  url = "";
  private readonly server = createServer((incoming, outgoing) => {
    this.requests += 1;
    const fault = this.faults.shift();
    if (fault === "drop-request") return void incoming.socket.destroy();
    if (fault === "unavailable") {
      const error = { code: 9004, name: "UNAVAILABLE", message: "stopping", details: { reason: "BUSY" } };
      outgoing.writeHead(503, { connection: "close" });
      return void outgoing.end(JSON.stringify({ error }));
    }
    const [host, port] = this.address.split(":");
    const { method, headers, url } = incoming;
    const passed = request({ host, port, method, headers: { ...headers, connection: "close" }, path: url }, (answer) => {
      if (fault === "drop-answer") {
        answer.resume();
        return void answer.once("end", () => incoming.socket.destroy());
      }
      outgoing.writeHead(answer.statusCode ?? 500, { ...answer.headers, connection: "close" });
      return void answer.pipe(outgoing);
    });
    passed.once("error", () => incoming.socket.destroy());
    incoming.pipe(passed);
  });

  constructor(private readonly address: string) {}

  async listen(): Promise<this> {
    await new Promise<void>((resolve) => this.server.listen(0, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
    return this;
  }

  /** Cuts all connections. */
  cut(): void {
    this.server.closeAllConnections();
  }

  close(): void {
    this.server.close();
    this.cut();
  }
}
