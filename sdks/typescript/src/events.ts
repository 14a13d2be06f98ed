/** Operations of a project: those of the past, and those that happen. */
import { ConnectError, RequestTimeoutError, UnavailableError } from "./errors.js";
import type { WatchOperationsResponse } from "./generated/api.js";
import { type Operation, operation, workspaceName } from "./models.js";
import { type CallOptions, type ChangeOptions, type Transport, sleep } from "./transport.js";

const PAGE_SIZE = 1000;
const RECONNECT_DELAY_MS_MAX = 30_000;

/**
 * The operations after a position, as they happen.
 *
 * It reconnects by itself for as long as it is iterated, and neither leaves out nor repeats an operation. Only the first
 * connection can fail. `await using`, `close()`, or the end of the loop closes the connection.
 */
export class Subscription implements AsyncDisposable {
  private readonly controller = new AbortController();
  private hasConnected = false;

  constructor(
    private readonly transport: Transport,
    /** The sequence number of the last operation that was returned. A later subscription goes on there. */
    public position: number,
    private readonly options: CallOptions,
  ) {}

  async *[Symbol.asyncIterator](): AsyncGenerator<Operation, void, undefined> {
    const { retryDelayMs, retryBackoff } = this.transport.options;
    const signals = [this.controller.signal, ...(this.options.signal ? [this.options.signal] : [])];
    let failures = 0;
    while (!this.controller.signal.aborted) {
      try {
        for await (const found of this.connected(AbortSignal.any(signals))) {
          failures = 0;
          this.position = found.sequence;
          yield found;
        }
      } catch (error) {
        if (this.controller.signal.aborted) return;
        const isLost =
          error instanceof ConnectError || error instanceof RequestTimeoutError || error instanceof UnavailableError;
        if (!isLost || !this.hasConnected) throw error;
        failures += 1;
      }
      const delay = retryDelayMs * retryBackoff ** Math.max(failures - 1, 0);
      await sleep(Math.min(delay, RECONNECT_DELAY_MS_MAX), [...signals, this.transport.lifetime.signal]);
    }
  }

  private async *connected(signal: AbortSignal): AsyncGenerator<Operation, void, undefined> {
    const options = { ...this.options, signal };
    const input = { query: { after: this.position } };
    for await (const event of this.transport.events("WatchOperations", input, options, String(this.position))) {
      this.hasConnected = true;
      if (event) yield operation((JSON.parse(event.data) as WatchOperationsResponse).operation);
    }
  }

  /** Ends the iteration and closes the connection. */
  close(): void {
    this.controller.abort();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}

/** The log of operations, as `client.events`. */
export class Events {
  constructor(private readonly transport: Transport) {}

  /** Returns the operations after a position, as they happen; 0 for all there are, without `after` those from now on. */
  async subscribe(options: CallOptions & { after?: number } = {}): Promise<Subscription> {
    const { after, ...calling } = options;
    return new Subscription(this.transport, after ?? (await this.position(calling)), calling);
  }

  /** Returns the sequence number of the newest operation; 0 without any. */
  async position(options: CallOptions = {}): Promise<number> {
    const answer = await this.transport.call("ListOperations", { query: { pageSize: 1 } }, options);
    return answer.operations?.[0]?.sequence ?? 0;
  }

  /** Yields operations, newest first; with `workspace` those that touched it. */
  async *list(options: CallOptions & { workspace?: string } = {}): AsyncGenerator<Operation, void, undefined> {
    const query = { workspace: workspaceName(options.workspace), pageSize: PAGE_SIZE };
    for await (const page of this.transport.pages("ListOperations", { query }, options)) {
      yield* (page.operations ?? []).map(operation);
    }
  }

  /** Returns one operation. */
  async get(sequence: number, options: CallOptions = {}): Promise<Operation> {
    const answer = await this.transport.call("GetOperation", { path: { name: String(sequence) } }, options);
    return operation(answer.operation);
  }

  /** Takes one operation back. Throws `NotPossibleError` if a name that it moved has moved since. */
  async undo(sequence: number, options: ChangeOptions = {}): Promise<Operation> {
    const body = { operation: `operations/${sequence}` };
    return operation((await this.transport.call("UndoOperation", { body }, options)).operation);
  }
}
