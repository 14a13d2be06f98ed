/** Commands in a sandbox: run, streamed, started, listed and killed. */
import {
  CommandFailedError,
  ConnectError,
  ProcessTimeoutError,
  RequestTimeoutError,
  UnavailableError,
} from "./errors.js";
import type { AttachCommandResponse } from "./generated/api.js";
import { type CommandEvent, type CommandInfo, type CommandResult, commandInfo, commandResult } from "./models.js";
import { base64Of, escapeBytes, unescapeBytes } from "./text.js";
import { type CallOptions, type ServerEvent, type Transport, sleep } from "./transport.js";

/** The server ends a call without a timeout after this time; the command goes on. */
const DEFAULT_TIMEOUT_MS = 60_000;
/** The time that an answer may take beyond the timeout of its command. */
const ANSWER_MS = 15_000;
const RECONNECT_DELAY_MS_MAX = 30_000;

/** Options of a command. `timeoutMs` is that of the command, not of the call. */
export interface CommandOptions {
  /** Ends the call when it is aborted. The command goes on. */
  signal?: AbortSignal | undefined;
  /** The working directory; `/workspace` without it. */
  cwd?: string;
  /** Environment variables. */
  envs?: Record<string, string>;
  /** The command and everything that it started are killed after this time. */
  timeoutMs?: number;
  /** Its standard input. */
  stdin?: string | Uint8Array;
  /** The bytes of output to return; 1 MiB for `run` without callbacks, everything for streams. */
  maxOutputBytes?: number;
}

/** Callbacks for output as it comes. */
export interface OutputCallbacks {
  onStdout?: (text: string) => void;
  onStderr?: (text: string) => void;
}

/** Reads the events of a command in their order. A character that is cut between two comes with the second one. */
class EventReader {
  private readonly decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };

  constructor(
    public commandId = "",
    public offset = 0,
  ) {}

  *read(value: AttachCommandResponse): Generator<CommandEvent, void, undefined> {
    const type = value.type ?? "";
    this.commandId = value.commandId || this.commandId;
    this.offset = value.nextOffset || this.offset;
    if (type === "error") {
      throw new CommandFailedError(value.message ?? "", { details: { commandId: this.commandId } });
    }
    if (type === "exit") {
      for (const name of ["stdout", "stderr"] as const) {
        const data = this.decoders[name].decode();
        if (data) yield this.event(name, data, new Uint8Array(), {});
      }
    }
    const output = unescapeBytes(value.output ?? "");
    const data = type === "stdout" || type === "stderr" ? this.decoders[type].decode(output, { stream: true }) : "";
    yield this.event(type as CommandEvent["type"], data, output, value);
  }

  private event(
    type: CommandEvent["type"],
    data: string,
    output: Uint8Array,
    value: AttachCommandResponse,
  ): CommandEvent {
    return {
      type,
      commandId: this.commandId,
      data,
      output,
      exitCode: value.exitCode ?? 0,
      message: value.message ?? "",
      nextOffset: this.offset,
      isTruncated: value.truncated ?? false,
    };
  }
}

/**
 * A command that was started in a sandbox, and that may have ended. It goes on when nobody reads its output, of which the
 * server keeps the last 8 MiB.
 */
export class Command {
  constructor(
    private readonly transport: Transport,
    private readonly sandboxId: string,
    readonly id: string,
  ) {}

  private get path(): { sandbox_id: string; command_id: string } {
    return { sandbox_id: this.sandboxId, command_id: this.id };
  }

  [Symbol.asyncIterator](): AsyncGenerator<CommandEvent, void, undefined> {
    return this.events();
  }

  /** Yields output from an offset on as it comes, and `exit` at the end. Reconnects by itself. */
  events(options: CallOptions & { offset?: number } = {}): AsyncGenerator<CommandEvent, void, undefined> {
    return follow(this.transport, this.sandboxId, new EventReader(this.id, options.offset ?? 0), undefined, options);
  }

  /** Waits for the end of the command, and returns its output. Throws `ProcessTimeoutError` if its time was up. */
  async wait(options: CallOptions & OutputCallbacks = {}): Promise<CommandResult> {
    return collect(this.events(options), options);
  }

  /** Sends standard input to a command that was started with `stdinOpen`. `end` tells it that there is no more. */
  async write(data: string | Uint8Array, options: CallOptions & { end?: boolean } = {}): Promise<void> {
    const body = { data: base64Of(data), end: options.end };
    await this.transport.call("WriteCommand", { path: this.path, body }, options);
  }

  /** Sends a signal to the command and everything that it started; 15 (`SIGTERM`) without a number. */
  async kill(signal = 15, options: CallOptions = {}): Promise<void> {
    await this.transport.call("KillCommand", { path: this.path, body: { signal } }, options, true);
  }
}

/** The commands of a sandbox, as `sandbox.commands`. */
export class Commands {
  constructor(
    private readonly transport: Transport,
    private readonly sandboxId: string,
  ) {}

  /**
   * Runs a command with `/bin/sh -c`, and returns its exit code and its output. No exit code is an error.
   *
   * Without `timeoutMs` the call ends after 60 seconds with `ProcessTimeoutError`, and the command goes on: `get` finds it
   * by `details.commandId`. With a callback it waits as long as the command runs.
   */
  async run(command: string, options: CommandOptions & OutputCallbacks = {}): Promise<CommandResult> {
    if (options.onStdout || options.onStderr) return collect(this.stream(command, options), options);
    const timeoutMs = Math.max((options.timeoutMs ?? DEFAULT_TIMEOUT_MS) + ANSWER_MS, this.transport.options.timeoutMs);
    const input = { path: { sandbox_id: this.sandboxId }, body: fields(command, options) };
    return commandResult(await this.transport.call("RunCommand", input, { signal: options.signal, timeoutMs }));
  }

  /**
   * Runs a command, and yields `started`, its output as it comes, and `exit`. A command whose stream is left goes on. A
   * connection that is lost is opened again at its place.
   */
  stream(
    command: string,
    options: CommandOptions & { stdinOpen?: boolean } = {},
  ): AsyncGenerator<CommandEvent, void, undefined> {
    const body = { ...fields(command, options), stdinOpen: options.stdinOpen, binary: true };
    const calling = { signal: options.signal };
    const first = this.transport.events("StreamCommand", { path: { sandbox_id: this.sandboxId }, body }, calling);
    return follow(this.transport, this.sandboxId, new EventReader(), first, calling);
  }

  /** Starts a command, and returns without waiting for its end. With `stdinOpen`, `write` sends standard input. */
  async start(command: string, options: CommandOptions & { stdinOpen?: boolean } = {}): Promise<Command> {
    for await (const event of this.stream(command, options)) return this.get(event.commandId);
    throw new ConnectError("the stream of the command ended before the command was started");
  }

  /** Returns a command by its id, for example to read its output again. Does not ask the server. */
  get(commandId: string): Command {
    return new Command(this.transport, this.sandboxId, commandId);
  }

  /** Returns the commands that run, and the last ones that have ended. */
  async list(options: CallOptions = {}): Promise<CommandInfo[]> {
    const answer = await this.transport.call("ListCommands", { path: { sandbox_id: this.sandboxId } }, options);
    return (answer.commands ?? []).map(commandInfo);
  }

  /** Sends a signal to a command and everything that it started. */
  async kill(commandId: string, signal = 15, options: CallOptions = {}): Promise<void> {
    await this.get(commandId).kill(signal, options);
  }
}

/** Yields the events of a call that starts a command, and goes on with calls that attach to it. */
async function* follow(
  transport: Transport,
  sandboxId: string,
  reader: EventReader,
  first: AsyncIterable<ServerEvent | undefined> | undefined,
  options: CallOptions,
): AsyncGenerator<CommandEvent, void, undefined> {
  const { retryDelayMs, retryBackoff, retries } = transport.options;
  const signals = [transport.lifetime.signal, ...(options.signal ? [options.signal] : [])];
  let starting = first;
  let hasConnected = false;
  for (let failures = 0; ; ) {
    let lost: unknown = new ConnectError("the stream of the command ended before the command");
    try {
      for await (const event of starting ?? attached(transport, sandboxId, reader, options)) {
        hasConnected = true;
        if (!event) continue;
        for (const one of reader.read(JSON.parse(event.data) as AttachCommandResponse)) {
          // The command has been started: no call may start another one.
          starting = undefined;
          failures = 0;
          yield one;
          if (one.type === "exit") return;
        }
      }
    } catch (error) {
      if (!isLost(error)) throw error;
      lost = error;
    }
    failures += 1;
    if (starting || !hasConnected || failures > retries) throw lost;
    await sleep(Math.min(retryDelayMs * retryBackoff ** (failures - 1), RECONNECT_DELAY_MS_MAX), signals);
  }
}

function attached(
  transport: Transport,
  sandboxId: string,
  reader: EventReader,
  options: CallOptions,
): AsyncGenerator<ServerEvent | undefined, void, undefined> {
  const path = { sandbox_id: sandboxId, command_id: reader.commandId };
  const { signal, timeoutMs } = options;
  const input = { path, query: { offset: reader.offset, binary: true } };
  return transport.events("AttachCommand", input, { signal, timeoutMs });
}

/** Whether an error means that the connection was lost. */
export function isLost(error: unknown): boolean {
  return error instanceof ConnectError || error instanceof RequestTimeoutError || error instanceof UnavailableError;
}

async function collect(events: AsyncIterable<CommandEvent>, callbacks: OutputCallbacks): Promise<CommandResult> {
  const texts = { stdout: "", stderr: "" };
  let isTruncated = false;
  for await (const event of events) {
    isTruncated ||= event.isTruncated;
    if (event.type === "stdout" || event.type === "stderr") {
      texts[event.type] += event.data;
      if (event.data) (event.type === "stdout" ? callbacks.onStdout : callbacks.onStderr)?.(event.data);
    } else if (event.type === "exit") {
      const { commandId, exitCode, message } = event;
      if (message) {
        const details = { commandId, killed: "true" };
        throw new ProcessTimeoutError(`command ${commandId}: ${message}`, { details });
      }
      return { commandId, exitCode, ...texts, isTruncated };
    }
  }
  throw new ConnectError("the stream of the command ended before the command");
}

function fields(command: string, options: CommandOptions) {
  return {
    command,
    cwd: options.cwd,
    envs: { ...options.envs },
    timeout: options.timeoutMs,
    stdin: escapeBytes(options.stdin ?? ""),
    maxOutputSize: options.maxOutputBytes,
  };
}
