/** The policy of a project: the permissions of agents. */
import { NothingToRevertError } from "./errors.js";
import {
  type Operation,
  type Permission,
  type Policy,
  type PolicyComplaint,
  type PolicySet,
  operation,
  optionalOperation,
  permission,
} from "./models.js";
import { escapePath } from "./text.js";
import type { CallOptions, ChangeOptions, Transport } from "./transport.js";

/** The policy of a project, as `client.policy`. Its text is TOML; docs/PERMISSIONS.md describes it. */
export class Policies {
  constructor(private readonly transport: Transport) {}

  /** Returns the policy as it is now. */
  async show(options: CallOptions = {}): Promise<Policy> {
    const answer = await this.transport.call("GetPolicy", {}, options);
    return { text: answer.text ?? "", operation: optionalOperation(answer.operation) };
  }

  /**
   * Replaces the policy for every request that begins afterwards; an empty text removes it. Needs the scope `admin`. With
   * `dryRun` only checks it.
   */
  async set(text: string, options: ChangeOptions & { dryRun?: boolean } = {}): Promise<PolicySet> {
    const answer = await this.transport.call("SetPolicy", { body: { text, dryRun: options.dryRun } }, options);
    const { changed = false, warnings = [] } = answer;
    return { isChanged: changed, operation: optionalOperation(answer.operation), warnings };
  }

  /** Returns the errors in the text of a policy; none if it can be used. */
  async check(text: string, options: CallOptions = {}): Promise<PolicyComplaint[]> {
    const answer = await this.transport.call("CheckPolicy", { body: { text } }, options, true);
    return (answer.complaints ?? []).map(({ line = 0, column = 0, message = "" }) => ({ line, column, message }));
  }

  /**
   * Returns the permissions of an agent at a path, and the rule that gives them. Without `agent` that of the caller's key;
   * another one needs the scope `admin`.
   */
  async explain(path: string, options: CallOptions & { agent?: string } = {}): Promise<Permission> {
    const query = { agent: options.agent, path: escapePath(path) };
    return permission(await this.transport.call("ExplainPolicy", { query }, options));
  }

  /** Returns the permissions that an agent would have under another policy. Needs the scope `admin`. */
  async test(text: string, path: string, options: CallOptions & { agent?: string } = {}): Promise<Permission> {
    const query = { agent: options.agent, path: escapePath(path), text };
    return permission(await this.transport.call("ExplainPolicy", { query }, options));
  }

  /** Returns the operations that changed the policy, newest first. */
  async history(options: CallOptions & { limit?: number } = {}): Promise<Operation[]> {
    const answer = await this.transport.call("ListPolicyChanges", { query: { pageSize: options.limit ?? 100 } }, options);
    return (answer.operations ?? []).map(operation);
  }

  /** Takes the last change of the policy back. Returns the operation that did so. */
  async undo(options: ChangeOptions = {}): Promise<Operation> {
    const { signal, timeoutMs } = options;
    const [last] = await this.history({ limit: 1, signal, timeoutMs });
    if (!last) throw new NothingToRevertError("the policy was never changed");
    const body = { operation: `operations/${last.sequence}` };
    return operation((await this.transport.call("UndoOperation", { body }, options)).operation);
  }
}
