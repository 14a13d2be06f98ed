/** Sandboxes: isolated commands beside a workspace. */
import type { Amalgam } from "./client.js";
import { Commands } from "./commands.js";
import { NotIsolatedError, ProtocolError, SandboxNotFoundError, UnsupportedError } from "./errors.js";
import { Files } from "./files.js";
import {
  type BatchDeleted,
  type ForkRun,
  type PortUrl,
  type Revision,
  type SandboxInfo,
  type SandboxLogs,
  type SandboxState,
  type SandboxStats,
  type Template,
  batchDeleted,
  forkRun,
  revisionText,
  sandboxInfo,
  sandboxStats,
  workspaceName,
} from "./models.js";
import { Terminals } from "./terminals.js";
import { escape } from "./text.js";
import type { CallOptions, Transport } from "./transport.js";

const PAGE_SIZE = 100;
/** A creation may wait in a queue for 30 seconds. */
const CREATE_MS = 90_000;
/** A command without output is waited for so long. */
const RUN_MS = 24 * 3_600_000;

/** Options of a sandbox. `timeoutMs` is that of the call. */
export interface SandboxOptions extends CallOptions {
  /** A name for people. */
  name?: string;
  /** Environment variables of all its commands. */
  envs?: Record<string, string>;
  /** It is ended and its workspace committed after so many seconds; an hour without it, at most a day. */
  lifetimeSeconds?: number;
  /** CPUs, for example `0.5`. A limit that is given and that nothing enforces is an error, unless `bestEffort` is set. */
  cpu?: string;
  /** For example `512m`. */
  memory?: string;
  /** The size of the workspace, for example `1g`. */
  disk?: string;
  /** Processes and threads. */
  pids?: number;
  /** Start it although nothing enforces some of the limits; `info.limits` tells which. */
  bestEffort?: boolean;
  /** Show the workspace for reading only. */
  readOnly?: boolean;
  /** The runtime; the server's default without it. */
  runtime?: string;
  /** `none` without it; or the hosts that it may reach, for example `["pypi.org", "*.pythonhosted.org"]`. */
  network?: string | readonly string[];
  /** Keep a workspace that is made for the sandbox when the sandbox is disposed of. */
  keepWorkspace?: boolean;
}

/** Options of `client.sandboxes.create`. */
export interface CreateSandboxOptions extends SandboxOptions {
  /** What it is started from: `client.templates.list()`; `host` without it. */
  template?: string;
  /** An existing workspace to work in. */
  workspace?: string | { readonly name: string };
  /** A snapshot or a workspace whose contents a new workspace gets. Without it and `workspace` it is empty. */
  base?: Revision | { readonly name: string };
}

/** A sandbox. `await using` deletes it at the end of a block; a workspace that existed before it stays. */
export class Sandbox implements AsyncDisposable {
  /** Runs commands in it. */
  readonly commands: Commands;
  /** Its terminals. */
  readonly pty: Terminals;
  /** The files of its workspace, which its commands see at `/workspace`. */
  readonly files: Files;
  private readonly service: Sandboxes;

  constructor(
    transport: Transport,
    /** The sandbox as the server described it last; `refresh` reads it again. */
    public info: SandboxInfo,
    private readonly keepWorkspace = false,
  ) {
    this.service = new Sandboxes(transport);
    this.commands = new Commands(transport, info.id);
    this.pty = new Terminals(transport, info.id);
    this.files = new Files(transport, info.workspace);
  }

  /** `sbx-...`. */
  get id(): string {
    return this.info.id;
  }

  /** The name; may be empty. */
  get name(): string {
    return this.info.name;
  }

  /** The state as this object saw it last. */
  get state(): SandboxState {
    return this.info.state;
  }

  /** The name of its workspace: `client.workspaces.get` has the rest of it. */
  get workspace(): string {
    return this.info.workspace;
  }

  /** Reads `info` again. */
  async refresh(options: CallOptions = {}): Promise<SandboxInfo> {
    this.info = (await this.service.get(this.id, options)).info;
    return this.info;
  }

  /** Lets the sandbox live longer: 3,600 seconds at most by one call, 24 hours in all. */
  async extend(seconds: number, options: CallOptions = {}): Promise<SandboxInfo> {
    this.info = (await this.service.extend(this.id, seconds, options)).info;
    return this.info;
  }

  /** Returns the log of the sandbox. */
  async logs(options: LogOptions = {}): Promise<SandboxLogs> {
    return this.service.logs(this.id, options);
  }

  /** Returns the resources that the sandbox uses. */
  async stats(options: CallOptions = {}): Promise<SandboxStats> {
    return this.service.stats(this.id, options);
  }

  /**
   * Makes a URL at which a port of the sandbox is reached without a key, by HTTP and WebSockets. A program in the sandbox has to
   * listen there, on the loopback address or on all addresses. The URL is good for `seconds`: an hour without it, at most a day.
   */
  async openPort(port: number, options: CallOptions & { seconds?: number } = {}): Promise<PortUrl> {
    return this.service.openPort(this.id, port, options);
  }

  /**
   * Returns what stands behind `http://` in the URL of a port, as in `http://${await sandbox.getHost(8000)}/path`. Good for an
   * hour; `openPort` has the whole URL, and takes another time.
   */
  async getHost(port: number, options: CallOptions = {}): Promise<string> {
    return (await this.openPort(port, options)).host;
  }

  /** Copies the workspace as it is now, without a pause, and starts a sandbox on each copy. */
  async fork(options: CallOptions & { count?: number; name?: string } = {}): Promise<Sandbox[]> {
    return this.service.fork(this.id, options);
  }

  /** Ends the sandbox. A workspace that was made for it is deleted, and can be undeleted, unless it is kept. */
  async delete(options: CallOptions & { keepWorkspace?: boolean } = {}): Promise<void> {
    await this.service.delete(this.id, options);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.delete({ keepWorkspace: this.keepWorkspace });
    } catch (error) {
      // It may have been deleted inside the block.
      if (!(error instanceof SandboxNotFoundError)) throw error;
    }
  }
}

/** Options of the log of a sandbox. */
export interface LogOptions extends CallOptions {
  /** The last lines; 100 without it. */
  tail?: number;
  since?: Date;
  until?: Date;
}

/** Options of `client.sandboxes.runOnFork`. `timeoutMs` is the time without a message after which the call fails. */
export interface RunOnForkOptions extends CallOptions {
  /** `/workspace` without it. */
  cwd?: string;
  /** Environment variables of the command. */
  envs?: Record<string, string>;
  /** The command and everything that it started are killed after this time. */
  commandTimeoutMs?: number;
  /** Standard input. */
  stdin?: string;
  /** Secrets of the command, as in `commands.run`. */
  secrets?: Record<string, string>;
  /** What the sandbox is started from; `host` without it. */
  template?: string;
  /** `none` without it; or the hosts that it may reach, for example `["pypi.org", "*.pythonhosted.org"]`. */
  network?: string | readonly string[];
  /** Merge what the command changed; so it is without it. */
  merge?: boolean;
  /** Keep the fork if it is not merged. */
  keep?: boolean;
  /** The message of the merge; the command without it. */
  message?: string;
  /** Called with each stage: `update`, `fork`, `sandbox`, `run`, `end`, `detect`, `merge` and `clean`. */
  onStage?: (stage: string) => void;
  /** Called with pieces of the standard output as they come. */
  onStdout?: (text: string) => void;
  /** The same for the standard error. */
  onStderr?: (text: string) => void;
}

/** The sandboxes of a project, as `client.sandboxes`. Calls need a key with the scope `run`. */
export class Sandboxes {
  constructor(private readonly transport: Transport) {}

  /** Starts a sandbox, and returns when it takes commands. */
  async create(options: CreateSandboxOptions = {}): Promise<Sandbox> {
    const { cpu, memory, disk, pids, workspace, base } = options;
    const body = {
      template: options.template ?? "host",
      name: options.name,
      workspace: workspaceName(typeof workspace === "object" ? workspace.name : workspace),
      from: typeof base === "object" && "name" in base ? `${base.name}@` : revisionText(base),
      envs: { ...options.envs },
      timeoutSeconds: options.lifetimeSeconds,
      resources: cpu || memory || disk || pids ? withoutUndefined({ cpu, memory, disk, pids }) : undefined,
      bestEffort: options.bestEffort,
      readOnly: options.readOnly,
      runtime: options.runtime,
      ...networkFields(options.network),
    };
    try {
      const answer = await this.transport.call("CreateSandbox", { body }, this.slow(options));
      return new Sandbox(this.transport, sandboxInfo(answer), options.keepWorkspace);
    } catch (error) {
      if (!(error instanceof UnsupportedError) || error instanceof NotIsolatedError || !this.transport.store) throw error;
      throw new UnsupportedError("the process of the local store has no sandboxes", {
        suggestion: "Start `amalgam serve --listen`, and pass its URL and a key.",
        cause: error,
      });
    }
  }

  /** Returns a sandbox. */
  async get(id: string, options: CallOptions = {}): Promise<Sandbox> {
    return new Sandbox(this.transport, sandboxInfo(await this.transport.call("GetSandbox", { path: { id } }, options)));
  }

  /** Yields the sandboxes of the project, newest first. The caller may delete them meanwhile. */
  async *list(
    options: CallOptions & { state?: SandboxState; namePrefix?: string } = {},
  ): AsyncGenerator<Sandbox, void, undefined> {
    const { state, namePrefix } = options;
    // Pages are numbered: a sandbox that is created or deleted between two of them moves the others.
    const sandboxes = new Map<string, SandboxInfo>();
    for (let page = 1; ; page += 1) {
      const query = { page, limit: PAGE_SIZE, state, namePrefix };
      const items = (await this.transport.call("ListSandboxes", { query }, options)).items ?? [];
      for (const info of items.map(sandboxInfo)) sandboxes.set(info.id, info);
      if (items.length < PAGE_SIZE) break;
    }
    for (const info of sandboxes.values()) yield new Sandbox(this.transport, info);
  }

  /** Ends a sandbox and forgets it. `keepWorkspace` commits and keeps a workspace that was made for it. */
  async delete(id: string, options: CallOptions & { keepWorkspace?: boolean } = {}): Promise<void> {
    const query = { keepWorkspace: options.keepWorkspace };
    await this.transport.call("DeleteSandbox", { path: { id }, query }, options);
  }

  /** Deletes up to 50 sandboxes. */
  async batchDelete(
    ids: readonly string[],
    options: CallOptions & { keepWorkspace?: boolean } = {},
  ): Promise<BatchDeleted> {
    const body = { ids: [...ids], keepWorkspace: options.keepWorkspace };
    return batchDeleted(await this.transport.call("BatchDeleteSandboxes", { body }, this.slow(options)));
  }

  /** Returns the last lines of the log of a sandbox. */
  async logs(id: string, options: LogOptions = {}): Promise<SandboxLogs> {
    const { tail = 100, since, until } = options;
    const query = { tail, since: since?.toISOString(), until: until?.toISOString() };
    const answer = await this.transport.call("GetSandboxLogs", { path: { id }, query }, options);
    return { text: answer.logs ?? "", isTruncated: answer.truncated ?? false };
  }

  /** Returns the resources that a sandbox uses. */
  async stats(id: string, options: CallOptions = {}): Promise<SandboxStats> {
    return sandboxStats(await this.transport.call("GetSandboxStats", { path: { id } }, options));
  }

  /** Lets a sandbox live longer: 3,600 seconds at most by one call, 24 hours in all. */
  async extend(id: string, seconds: number, options: CallOptions = {}): Promise<Sandbox> {
    const answer = await this.transport.call("ExtendSandbox", { path: { id }, body: { seconds } }, options);
    return new Sandbox(this.transport, sandboxInfo(answer));
  }

  /** Copies the workspace of a running sandbox, without a pause, and starts a sandbox on each copy. */
  async fork(id: string, options: CallOptions & { count?: number; name?: string } = {}): Promise<Sandbox[]> {
    const body = { count: options.count ?? 1, name: options.name };
    const answer = await this.transport.call("ForkSandbox", { path: { id }, body }, this.slow(options));
    return (answer.sandboxes ?? []).map((found) => new Sandbox(this.transport, sandboxInfo(found)));
  }

  /** Makes a URL at which a port of a sandbox is reached without a key. */
  async openPort(id: string, port: number, options: CallOptions & { seconds?: number } = {}): Promise<PortUrl> {
    const path = { sandbox_id: id, port: String(port) };
    const answer = await this.transport.call("OpenPort", { path, body: { timeoutSeconds: options.seconds } }, options);
    const { url = "", host = "", expiresAt } = answer;
    return { url, host, expiresAt: expiresAt ? new Date(expiresAt) : undefined };
  }

  /**
   * Runs a command on a fork of a workspace in a sandbox of its own, and merges what it changed: one call.
   *
   * The workspace is updated first if it follows a source. If the command ends with 0, the fork is merged through the
   * queue and ends; otherwise it is deleted, and can be undeleted, unless it is to be kept. A call that is aborted ends the
   * command, and nothing is merged. Needs a key with the scopes `run` and `merge`.
   */
  async runOnFork(
    workspace: string | { readonly name: string },
    command: string,
    options: RunOnForkOptions = {},
  ): Promise<ForkRun> {
    const body = {
      from: workspaceName(typeof workspace === "object" ? workspace.name : workspace),
      command,
      cwd: options.cwd,
      envs: { ...options.envs },
      timeout: options.commandTimeoutMs,
      stdin: options.stdin === undefined ? undefined : escape(options.stdin),
      secrets: { ...options.secrets },
      sandbox: { template: options.template ?? "host", ...networkFields(options.network) },
      noMerge: options.merge === false,
      keep: options.keep,
      message: options.message,
    };
    const call = { signal: options.signal, timeoutMs: options.timeoutMs ?? RUN_MS };
    let [stdout, stderr] = ["", ""];
    for await (const message of this.transport.messages("RunOnFork", { body }, call)) {
      const { stage, output, result } = message;
      if (stage) options.onStage?.(stage.stage ?? "");
      if (output?.type === "stdout") {
        stdout += output.data ?? "";
        options.onStdout?.(output.data ?? "");
      } else if (output?.type === "stderr") {
        stderr += output.data ?? "";
        options.onStderr?.(output.data ?? "");
      }
      if (result) return forkRun(result, stdout, stderr);
    }
    throw new ProtocolError("the stream ended without a result");
  }

  private slow({ signal, timeoutMs }: CallOptions): CallOptions {
    return { signal, timeoutMs: timeoutMs ?? Math.max(CREATE_MS, this.transport.options.timeoutMs) };
  }
}

/** What sandboxes can be started from, as `client.templates`. */
export class Templates {
  constructor(private readonly transport: Transport) {}

  /** Returns the templates of the server. */
  async list(options: CallOptions = {}): Promise<Template[]> {
    const { templates = [] } = await this.transport.call("ListTemplates", {}, options);
    return templates.map(({ name = "", description = "", tags = [] }) => ({ name, description, tags }));
  }
}

/** Runs a function with a sandbox that is deleted after it, also if it throws: for code without `await using`. */
export async function withSandbox<R>(
  client: Amalgam,
  options: CreateSandboxOptions,
  run: (sandbox: Sandbox) => Promise<R>,
): Promise<R> {
  const sandbox = await client.sandboxes.create(options);
  try {
    return await run(sandbox);
  } finally {
    await sandbox[Symbol.asyncDispose]();
  }
}

/** The fields of a network: a word, or the hosts of an allow-list. */
function networkFields(network: string | readonly string[] | undefined): { network?: string; allowedHosts?: string[] } {
  if (network === undefined) return {};
  return typeof network === "string" ? { network } : { allowedHosts: [...network] };
}

function withoutUndefined<T extends object>(value: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  const pairs = Object.entries(value).filter(([, one]) => one !== undefined);
  return Object.fromEntries(pairs) as { [K in keyof T]: Exclude<T[K], undefined> };
}
