/** Projects and API keys of a server, and merges that wait for a person. */
import {
  type Key,
  type MergeResult,
  type NewKey,
  type Project,
  type ProjectUsage,
  type QueueEntry,
  type ReviewInfo,
  type Scope,
  key,
  mergeResult,
  project,
  queueEntry,
  reviewInfo,
  workspaceName,
} from "./models.js";
import { escapePath } from "./text.js";
import type { CallOptions, ChangeOptions, Transport } from "./transport.js";

/** The projects of a server, as `client.projects`. Each is a store of its own. */
export class Projects {
  constructor(private readonly transport: Transport) {}

  /** Makes a project with an empty store. Needs the scope `admin`. */
  async create(name: string, options: CallOptions = {}): Promise<Project> {
    const answer = await this.transport.call("CreateProject", { body: { projectId: name } }, options);
    return project(answer.project);
  }

  /** Returns a project. */
  async get(name: string, options: CallOptions = {}): Promise<Project> {
    return project((await this.transport.call("GetProject", { path: { name } }, options)).project);
  }

  /** Yields the projects that the caller may use, by name. */
  async *list(options: CallOptions & { showDeleted?: boolean } = {}): AsyncGenerator<Project, void, undefined> {
    const query = { pageSize: 1000, showDeleted: options.showDeleted };
    for await (const page of this.transport.pages("ListProjects", { query }, options)) {
      yield* (page.projects ?? []).map(project);
    }
  }

  /** Deletes a project. Its data stays until an operator removes it. */
  async delete(name: string, options: CallOptions = {}): Promise<Project> {
    return project((await this.transport.call("DeleteProject", { path: { name } }, options)).project);
  }

  /** Brings a deleted project back. */
  async undelete(name: string, options: CallOptions = {}): Promise<Project> {
    return project((await this.transport.call("UndeleteProject", { path: { name }, body: {} }, options)).project);
  }

  /** Returns the disk space of a project and the number of its objects. */
  async usage(name: string, options: CallOptions = {}): Promise<ProjectUsage> {
    const answer = await this.transport.call("GetProjectUsage", { path: { name } }, options);
    return {
      diskBytes: answer.diskBytes ?? 0,
      workspaces: answer.workspaces ?? 0,
      operations: answer.operations ?? 0,
    };
  }
}

/** The API keys of a server, as `client.keys`. */
export class Keys {
  constructor(private readonly transport: Transport) {}

  /**
   * Makes a key. Only this answer holds its text. `agent` is the actor of the operations that the key makes. A scope
   * includes those before it, except that `run` includes nothing.
   */
  async create(
    agent: string,
    options: CallOptions & { scopes: readonly Scope[]; projects?: readonly string[]; expires?: Date },
  ): Promise<NewKey> {
    const body = {
      agent,
      scopes: [...options.scopes],
      projects: [...(options.projects ?? [])],
      expireTime: options.expires?.toISOString(),
    };
    const answer = await this.transport.call("CreateKey", { body }, options);
    return { key: key(answer.key), text: answer.text ?? "" };
  }

  /** Returns all keys by time of creation, revoked and expired ones, too. */
  async list(options: CallOptions = {}): Promise<Key[]> {
    const keys: Key[] = [];
    for await (const page of this.transport.pages("ListKeys", { query: { pageSize: 1000 } }, options)) {
      keys.push(...(page.keys ?? []).map(key));
    }
    return keys;
  }

  /** Revokes a key for ever. Its open streams end. */
  async revoke(revoked: string | Key, options: CallOptions = {}): Promise<Key> {
    const name = typeof revoked === "string" ? revoked : revoked.id;
    return key((await this.transport.call("RevokeKey", { path: { name } }, options)).key);
  }

  /** Returns the key that makes this call; nothing on a server without keys. */
  async caller(options: CallOptions = {}): Promise<Key | undefined> {
    const answer = await this.transport.call("GetCaller", {}, options);
    return answer.key ? key(answer.key) : undefined;
  }
}

/** Merges that wait in the queue or for a person, as `client.reviews`. */
export class Reviews {
  constructor(private readonly transport: Transport) {}

  /** Returns the merges that wait for a person; with `target` those into one workspace. */
  async list(options: CallOptions & { target?: string } = {}): Promise<ReviewInfo[]> {
    const query = { target: workspaceName(options.target), pageSize: 1000 };
    const found: ReviewInfo[] = [];
    for await (const page of this.transport.pages("ListReviews", { query }, options)) {
      found.push(...(page.reviews ?? []).map(reviewInfo));
    }
    return found;
  }

  /** Returns one merge that waits for a person. */
  async get(id: string, options: CallOptions = {}): Promise<ReviewInfo> {
    return reviewInfo((await this.transport.call("GetReview", { path: { name: id } }, options)).review);
  }

  /** Returns the merges that wait in the queue, the oldest of each target first. */
  async queue(options: CallOptions & { target?: string } = {}): Promise<QueueEntry[]> {
    const query = { target: workspaceName(options.target), pageSize: 1000 };
    const found: QueueEntry[] = [];
    for await (const page of this.transport.pages("ListQueue", { query }, options)) {
      found.push(...(page.entries ?? []).map(queueEntry));
    }
    return found;
  }

  /** Merges again, and stores the conflicts that are left in the target. */
  async accept(id: string, options: ChangeOptions & { dryRun?: boolean } = {}): Promise<MergeResult> {
    const input = { path: { name: id }, body: { dryRun: options.dryRun } };
    return mergeResult((await this.transport.call("AcceptReview", input, options)).merge);
  }

  /** Merges again, and takes one side of each conflict, or of those at `paths`. */
  async take(
    id: string,
    side: "ours" | "theirs",
    options: ChangeOptions & { paths?: readonly string[]; dryRun?: boolean } = {},
  ): Promise<MergeResult> {
    const sides = { ours: "MERGE_SIDE_OURS", theirs: "MERGE_SIDE_THEIRS" } as const;
    const body = { side: sides[side], paths: (options.paths ?? []).map(escapePath), dryRun: options.dryRun };
    return mergeResult((await this.transport.call("TakeReview", { path: { name: id }, body }, options)).merge);
  }

  /** Does not merge it. The workspace stays as it is. */
  async reject(id: string, options: ChangeOptions = {}): Promise<void> {
    await this.transport.call("RejectReview", { path: { name: id }, body: {} }, options);
  }
}
