/** Terminals in a sandbox. */
import { isLost } from "./commands.js";
import { CommandFailedError, ConnectError } from "./errors.js";
import type { AttachTerminalResponse } from "./generated/api.js";
import { base64Of, bytesOf } from "./text.js";
import { type CallOptions, type Transport, sleep } from "./transport.js";

const RECONNECT_DELAY_MS_MAX = 30_000;

/** A shell on a terminal in a sandbox. `sandbox.pty.create` makes one. */
export class Terminal {
  /** The number of bytes of output that `output` has yielded. */
  offset = 0;
  /** The exit code of the shell; undefined until `output` has come to its end. */
  exitCode: number | undefined;

  constructor(
    private readonly transport: Transport,
    private readonly sandboxId: string,
    readonly id: string,
  ) {}

  private get path(): { sandbox_id: string; pty_id: string } {
    return { sandbox_id: this.sandboxId, pty_id: this.id };
  }

  [Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    return this.output();
  }

  /**
   * Yields output as it comes, until the shell ends; without `offset` after the bytes that were yielded before. Reconnects
   * by itself.
   */
  async *output(options: CallOptions & { offset?: number } = {}): AsyncGenerator<Uint8Array, void, undefined> {
    const { retryDelayMs, retryBackoff, retries } = this.transport.options;
    const { signal, timeoutMs } = options;
    const signals = [this.transport.lifetime.signal, ...(signal ? [signal] : [])];
    this.offset = options.offset ?? this.offset;
    let hasConnected = false;
    for (let failures = 0; ; ) {
      let lost: unknown = new ConnectError("the stream of the terminal ended before its shell");
      try {
        const input = { path: this.path, query: { offset: this.offset } };
        for await (const event of this.transport.events("AttachTerminal", input, { signal, timeoutMs })) {
          hasConnected = true;
          if (!event) continue;
          failures = 0;
          const value = JSON.parse(event.data) as AttachTerminalResponse;
          if (value.type === "exit") {
            this.exitCode = value.exitCode ?? 0;
            return;
          }
          if (value.type === "error") throw new CommandFailedError(value.message ?? "", { details: { ptyId: this.id } });
          this.offset = value.nextOffset ?? this.offset;
          yield bytesOf(value.data ?? "");
        }
      } catch (error) {
        if (!isLost(error)) throw error;
        lost = error;
      }
      failures += 1;
      if (!hasConnected || failures > retries) throw lost;
      await sleep(Math.min(retryDelayMs * retryBackoff ** (failures - 1), RECONNECT_DELAY_MS_MAX), signals);
    }
  }

  /** Types input. */
  async write(data: string | Uint8Array, options: CallOptions = {}): Promise<void> {
    await this.transport.call("WriteTerminal", { path: this.path, body: { data: base64Of(data) } }, options);
  }

  /** Sets the size. */
  async resize(cols: number, rows: number, options: CallOptions = {}): Promise<void> {
    await this.transport.call("ResizeTerminal", { path: this.path, body: { cols, rows } }, options, true);
  }

  /** Ends the shell and its processes. */
  async kill(options: CallOptions = {}): Promise<void> {
    await this.transport.call("KillTerminal", { path: this.path }, options);
  }
}

/** Options of a terminal. */
export interface TerminalOptions extends CallOptions {
  /** 80 without it. */
  cols?: number;
  /** 24 without it. */
  rows?: number;
  /** `/bin/bash` without it, or `/bin/sh` where there is none. */
  shell?: string;
  /** The working directory; `/workspace` without it. */
  cwd?: string;
  envs?: Record<string, string>;
}

/** The terminals of a sandbox, as `sandbox.pty`. A sandbox has at most five. */
export class Terminals {
  constructor(
    private readonly transport: Transport,
    private readonly sandboxId: string,
  ) {}

  /** Starts a shell on a terminal. */
  async create(options: TerminalOptions = {}): Promise<Terminal> {
    const { cols = 80, rows = 24, shell, cwd, envs } = options;
    const input = { path: { sandbox_id: this.sandboxId }, body: { cols, rows, shell, cwd, envs: { ...envs } } };
    return this.get((await this.transport.call("CreateTerminal", input, options)).id ?? "");
  }

  /** Returns a terminal by its id. Does not ask the server. */
  get(ptyId: string): Terminal {
    return new Terminal(this.transport, this.sandboxId, ptyId);
  }

  /** Sets the size of a terminal. */
  async resize(ptyId: string, cols: number, rows: number, options: CallOptions = {}): Promise<void> {
    await this.get(ptyId).resize(cols, rows, options);
  }

  /** Ends a terminal and its processes. */
  async kill(ptyId: string, options: CallOptions = {}): Promise<void> {
    await this.get(ptyId).kill(options);
  }
}
