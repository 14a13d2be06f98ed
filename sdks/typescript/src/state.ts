/** State values: small JSON values of a tree, beside its files. */
import { NotFoundError } from "./errors.js";
import { type JsonValue, type Revision, type StateValue, revisionText, stateValue } from "./models.js";
import type { CallOptions, Transport } from "./transport.js";

const PAGE_SIZE = 1000;

/** The state values of a workspace, as `ws.state`. Forks, commits, merges and restores carry them. */
export class State {
  constructor(
    private readonly transport: Transport,
    private readonly workspace: string,
  ) {}

  private path(key: string): { workspace: string; key: string } {
    return { workspace: this.workspace, key };
  }

  /** Returns a value; nothing if there is none. */
  async get(key: string, options: CallOptions & { revision?: Revision } = {}): Promise<JsonValue | undefined> {
    try {
      return (await this.entry(key, options)).value;
    } catch (error) {
      if (error instanceof NotFoundError) return undefined;
      throw error;
    }
  }

  /** Returns a value with its etag. Throws `NotFoundError` if there is none. */
  async entry(key: string, options: CallOptions & { revision?: Revision } = {}): Promise<StateValue> {
    const query = { revision: revisionText(options.revision) };
    const answer = await this.transport.call("GetState", { path: this.path(key), query }, options);
    return stateValue(answer.value);
  }

  /** Sets a value of the live tree to anything that JSON has, at most 64 KiB. */
  async set(
    key: string,
    value: JsonValue,
    options: CallOptions & { ifMatch?: string; ifAbsent?: boolean } = {},
  ): Promise<StateValue> {
    const { ifMatch, ifAbsent } = options;
    const body = { json: JSON.stringify(value), ifMatch, ifAbsent };
    const isSafe = !ifMatch && !ifAbsent;
    const answer = await this.transport.call("SetState", { path: this.path(key), body }, options, isSafe);
    return stateValue(answer.value);
  }

  /** Removes a value of the live tree. */
  async delete(key: string, options: CallOptions & { missingOk?: boolean; ifMatch?: string } = {}): Promise<void> {
    const query = { allowMissing: options.missingOk, ifMatch: options.ifMatch };
    await this.transport.call("DeleteState", { path: this.path(key), query }, options);
  }

  /** Yields the values whose keys start with a prefix, sorted by key. */
  async *list(
    prefix = "",
    options: CallOptions & { revision?: Revision } = {},
  ): AsyncGenerator<StateValue, void, undefined> {
    const query = { prefix, revision: revisionText(options.revision), pageSize: PAGE_SIZE };
    const input = { path: { workspace: this.workspace }, query };
    for await (const page of this.transport.pages("ListStates", input, options)) {
      yield* (page.values ?? []).map(stateValue);
    }
  }
}
