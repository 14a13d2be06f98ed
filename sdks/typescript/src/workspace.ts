/** One workspace: a named line of work with files, a head and a history. */
import { createHash } from "node:crypto";

import type { Edit } from "./edits.js";
import { InvalidArgumentError } from "./errors.js";
import { type Attempt, type ExploreOptions, explore, type SandboxExploreOptions } from "./explore.js";
import { Files } from "./files.js";
import type { Submission } from "./generated/api.js";
import { History } from "./history.js";
import { Merge, type OnConflict } from "./merge.js";
import {
  type Change,
  type Commit,
  type CommitKind,
  type FollowMode,
  type Followed,
  type Insight,
  type Operation,
  type Patch,
  type Restored,
  type Revision,
  type Snapshot,
  type Status,
  type Submitted,
  type WorkspaceInfo,
  commit,
  followed,
  operation,
  revisionText,
  status,
  submitted,
  workspaceInfo,
} from "./models.js";
import { Mount, type MountBackend } from "./mount.js";
import { type Sandbox, type SandboxOptions, Sandboxes } from "./sandboxes.js";
import { type CompareOptions, type DiffOptions, type Side, Snapshots } from "./snapshots.js";
import { State } from "./state.js";
import { escapePath } from "./text.js";
import type { CallOptions, ChangeOptions, Transport } from "./transport.js";

/** Options of commits. */
export interface CommitOptions extends ChangeOptions {
  /** Further small values to store with the snapshot. */
  metadata?: Record<string, string>;
  /** Labels to set on it. */
  labels?: readonly string[];
  /** `step` for a step of a run, `automatic` for a snapshot that retention may thin. */
  kind?: CommitKind;
  /**
   * Only if this is the head, `StaleHeadError` otherwise; `none` for a workspace without a snapshot. Without it, a head
   * that moved is merged with the changes.
   */
  expectedHead?: Revision;
  note?: string;
  reward?: number;
  /** Return before the commit is on disk: it survives a crash of the process, not a power cut. */
  buffered?: boolean;
  /** Return the paths that differ from the head before, at most 10,000. */
  withChanges?: boolean;
}

/** Options of commits of edits. */
export interface CommitEditsOptions extends CommitOptions {
  message?: string;
  /** The snapshot that the edits are made on; the head without it. */
  revision?: Revision;
  /** Return the counts of the change. */
  withSummary?: boolean;
}

/** Options of `complete` and `publish`. */
export interface SubmitOptions extends ChangeOptions {
  /** The workspace to merge into; that of a fork is the one that it was forked from. */
  target?: string;
  message?: string;
  /** False: do not wait until it is merged. */
  wait?: boolean;
  dryRun?: boolean;
}

/** A named line of work. `client.workspaces` makes and finds them. */
export class Workspace {
  /** The workspace as the server described it last; `refresh` reads it again. */
  info: WorkspaceInfo;
  /** The files of its live tree, or of any revision. */
  files!: Files;
  /** Small JSON values that belong to the tree. */
  state!: State;
  /** Blame and versions of files. */
  history!: History;
  private readonly snapshots: Snapshots;

  constructor(
    private readonly transport: Transport,
    info: WorkspaceInfo,
  ) {
    this.info = info;
    this.snapshots = new Snapshots(transport);
    this.bind(info);
  }

  private bind(info: WorkspaceInfo): void {
    this.info = info;
    this.files = new Files(this.transport, info.name);
    this.state = new State(this.transport, info.name);
    this.history = new History(this.transport, info.name);
  }

  /** The name, which may hold slashes. */
  get name(): string {
    return this.info.name;
  }

  /** The id of the head as this object saw it last; empty while nothing was committed. */
  get head(): string {
    return this.info.head;
  }

  private get path(): { name: string } {
    return { name: this.name };
  }

  /** Reads `info` again. */
  async refresh(options: CallOptions = {}): Promise<WorkspaceInfo> {
    const answer = await this.transport.call("GetWorkspace", { path: this.path }, options);
    this.info = workspaceInfo(answer.workspace);
    return this.info;
  }

  /** Returns the uncommitted changes of the live tree. */
  async status(options: CallOptions = {}): Promise<Status> {
    return status(await this.transport.call("GetStatus", { path: this.path }, options));
  }

  /** Commits the uncommitted changes of the live tree. */
  async commit(message = "", options: CommitOptions = {}): Promise<Commit> {
    const body = commitFields(message, options);
    return this.committed(await this.transport.call("CommitWorkspace", { path: this.path, body }, options));
  }

  /** Makes edits on the head, or on `revision`, and commits them in one call, without the live tree. */
  async commitEdits(edits: readonly Edit[], options: CommitEditsOptions = {}): Promise<Commit> {
    const body = {
      ...commitFields(options.message ?? "", options),
      edits: [...edits],
      revision: revisionText(options.revision),
      withSummary: options.withSummary,
    };
    const input = { path: { workspace: this.name }, body };
    return this.committed(await this.transport.call("CommitEdits", input, options));
  }

  private committed(answer: Parameters<typeof commit>[0]): Commit {
    const made = commit(answer);
    if (made.id) this.info = { ...this.info, head: made.id };
    return made;
  }

  /**
   * Yields the paths that differ between two snapshots; by default those of the last commit. `status` has the uncommitted
   * changes. `EMPTY` is the empty tree.
   */
  diff(before: Side = "@~", after: Side = "@", options: DiffOptions = {}): AsyncGenerator<Change, void, undefined> {
    return this.snapshots.diff(before, after, { ...options, workspace: this.name });
  }

  /** Returns the measures of a change: lines, languages, sizes, hints about risks, a score. */
  async insight(before: Side = "@~", after: Side = "@", options: CompareOptions = {}): Promise<Insight> {
    return this.snapshots.insight(before, after, { ...options, workspace: this.name });
  }

  /** Returns a unified patch that `git apply` takes. */
  async patch(
    before: Side = "@~",
    after: Side = "@",
    options: CompareOptions & { contextLines?: number } = {},
  ): Promise<Patch> {
    return this.snapshots.patch(before, after, { ...options, workspace: this.name });
  }

  /** Yields the snapshots that led to the head, newest first; with `path` those that changed it. */
  log(options: CallOptions & { path?: string } = {}): AsyncGenerator<Snapshot, void, undefined> {
    return this.snapshots.list({ ...options, workspace: this.name });
  }

  /** Returns one snapshot; `@` is the head. */
  async snapshot(revision: Revision = "@", options: CallOptions = {}): Promise<Snapshot> {
    return this.snapshots.get(revision, { ...options, workspace: this.name });
  }

  /**
   * Makes workspaces that begin where this one stands, all of them or none. Uncommitted changes are committed first.
   * With `count` the forks get names of their own, the same ones for the same `idempotencyKey`.
   */
  async fork(options: ChangeOptions & ({ count: number } | { names: readonly string[] })): Promise<Workspace[]> {
    const { idempotencyKey } = options;
    const workspaceIds = "names" in options ? [...options.names] : forkNames(this.name, options.count, idempotencyKey);
    if (workspaceIds.length === 0) throw new InvalidArgumentError("fork takes a count of at least 1, or names");
    const answer = await this.transport.call("ForkWorkspace", { path: this.path, body: { workspaceIds } }, options);
    return (answer.workspaces ?? []).map((found) => new Workspace(this.transport, workspaceInfo(found)));
  }

  /**
   * Makes an old tree, or paths of it, the newest snapshot. Uncommitted changes are recorded first: `undo` brings them
   * back. With `dryRun` returns the paths that would change in the head, and changes nothing.
   */
  async restore(
    revision: Revision,
    options: ChangeOptions & { paths?: readonly string[]; dryRun?: boolean } = {},
  ): Promise<Restored> {
    const paths = options.paths ?? [];
    if (options.dryRun) {
      const changes: Change[] = [];
      const { signal, timeoutMs } = options;
      for await (const one of this.diff("@", revision, { paths, signal, timeoutMs })) changes.push(one);
      return { isChanged: changes.length > 0, changes, isDryRun: true };
    }
    const body = { revision: revisionText(revision), paths: paths.map(escapePath) };
    const answer = await this.transport.call("RestoreWorkspace", { path: this.path, body }, options);
    this.info = workspaceInfo(answer.workspace);
    return { isChanged: answer.changed ?? false, changes: [], isDryRun: false };
  }

  /** Takes the last operation of this workspace back. Returns the operation that did so. */
  async undo(options: ChangeOptions = {}): Promise<Operation> {
    return this.revert("UndoOperation", options);
  }

  /** Does again the operation that was undone last. */
  async redo(options: ChangeOptions = {}): Promise<Operation> {
    return this.revert("RedoOperation", options);
  }

  private async revert(name: "UndoOperation" | "RedoOperation", options: ChangeOptions): Promise<Operation> {
    const answer = await this.transport.call(name, { body: { workspace: `workspaces/${this.name}` } }, options);
    const done = operation(answer.operation);
    const moved = done.changes.find(({ reference }) => reference === `workspace/${this.name}`);
    if (moved) this.info = { ...this.info, head: moved.after };
    return done;
  }

  /** Merges the head of another workspace into this one. Uncommitted changes of the other one are not merged. */
  async merge(
    other: Workspace,
    options: CallOptions & {
      onConflict?: OnConflict;
      message?: string;
      dryRun?: boolean;
      fastForwardOnly?: boolean;
    } = {},
  ): Promise<Merge> {
    const { message = "", fastForwardOnly = false, signal, timeoutMs } = options;
    const merge = new Merge(this.transport, this, other, message, fastForwardOnly);
    await merge.start(options.onConflict ?? "review", options.dryRun ?? false, { signal, timeoutMs });
    if (merge.isApplied) await this.refresh({ signal, timeoutMs });
    return merge;
  }

  /**
   * Merges this workspace into its target through the queue, and ends it when its work has landed. Conflicts wait for a
   * person: `client.reviews`.
   */
  async complete(options: SubmitOptions = {}): Promise<Submitted> {
    return this.submit("CompleteWorkspace", options);
  }

  /** Merges this workspace into its target through the queue, and keeps it. */
  async publish(options: SubmitOptions = {}): Promise<Submitted> {
    return this.submit("PublishWorkspace", options);
  }

  private async submit(name: "CompleteWorkspace" | "PublishWorkspace", options: SubmitOptions): Promise<Submitted> {
    const submission: Submission = {
      target: options.target ? `workspaces/${options.target}` : "",
      message: options.message ?? "",
      detach: options.wait === false,
      dryRun: options.dryRun ?? false,
    };
    const input = { path: { workspace: this.name }, body: { submission } };
    return submitted(await this.transport.call(name, input, options));
  }

  /**
   * Starts a sandbox whose commands work in this workspace. Its end commits their changes; this workspace stays. `image`
   * is the template; `host` without it.
   */
  async sandbox(options: SandboxOptions & { image?: string } = {}): Promise<Sandbox> {
    const { image = "host", ...given } = options;
    return new Sandboxes(this.transport).create({ ...given, template: image, workspace: this.name });
  }

  /**
   * Keeps this workspace up to date with another one, and updates it now. Files that the agent did not change are updated;
   * its own changes stay, merged where that is possible. `mode` is `lazy` (every 30 to 60 seconds), `regular` (5 to 10) or
   * `event` (at once); without it the interval is `everySeconds`, or 30 seconds.
   */
  async follow(
    source: string | { readonly name: string },
    options: ChangeOptions & { mode?: FollowMode; everySeconds?: number; dryRun?: boolean } = {},
  ): Promise<Followed> {
    const { mode, everySeconds, dryRun, signal, timeoutMs } = options;
    const sourceWorkspace = `workspaces/${typeof source === "string" ? source : source.name}`;
    const body = { sourceWorkspace, mode, everySeconds, dryRun };
    const answer = await this.transport.call("FollowSource", { path: { workspace: this.name }, body }, options);
    await this.refresh({ signal, timeoutMs });
    return followed(answer);
  }

  /** Merges the new snapshots of the source that this workspace follows, and returns when its files are updated. */
  async update(options: CallOptions & { dryRun?: boolean } = {}): Promise<Followed> {
    const input = { path: { workspace: this.name }, body: { dryRun: options.dryRun } };
    const answer = await this.transport.call("UpdateFollower", input, options, true);
    await this.refresh(options);
    return followed(answer);
  }

  /** Ends the following. The files stay as they are. */
  async unfollow(options: ChangeOptions = {}): Promise<void> {
    const { signal, timeoutMs } = options;
    await this.transport.call("UnfollowSource", { path: { workspace: this.name }, body: {} }, options);
    await this.refresh({ signal, timeoutMs });
  }

  /** Gives this workspace another name. */
  async rename(newName: string, options: ChangeOptions = {}): Promise<void> {
    const input = { path: this.path, body: { newWorkspaceId: newName } };
    this.bind(workspaceInfo((await this.transport.call("RenameWorkspace", input, options)).workspace));
  }

  /**
   * Mounts this workspace at a directory, until the end of the block with `await using`, or until `unmount`. Needs the local
   * store. Nothing is deleted by it: changes are those of the live tree.
   */
  async mount(path: string, options: { backend?: MountBackend } = {}): Promise<Mount> {
    return Mount.create(this.transport, this.name, path, options.backend ?? "auto");
  }

  /** Deletes this workspace. `client.workspaces.undelete` brings it back until it is collected. */
  async delete(options: ChangeOptions & { etag?: string } = {}): Promise<void> {
    await this.transport.call("DeleteWorkspace", { path: this.path, query: { etag: options.etag } }, options);
  }

  /**
   * Forks this workspace, runs a function in each fork, and keeps the fork with the highest score. Throws `ExploreError`
   * if all attempts failed.
   */
  async explore<R>(options: ExploreOptions<R> | SandboxExploreOptions<R>): Promise<Attempt<R>> {
    return explore(this, options);
  }
}

function forkNames(name: string, count: number, idempotencyKey: string | undefined): string[] {
  // A call that is made again with its key has to ask for the same names.
  const mark = idempotencyKey ? createHash("sha256").update(idempotencyKey).digest("hex") : crypto.randomUUID();
  return Array.from({ length: count }, (_, index) => `${name}-${mark.slice(0, 8)}-${index + 1}`);
}

function commitFields(message: string, options: CommitOptions) {
  const head = options.expectedHead === undefined ? undefined : revisionText(options.expectedHead);
  const kind = { manual: "COMMIT_KIND_MANUAL", step: "COMMIT_KIND_STEP", automatic: "COMMIT_KIND_AUTOMATIC" } as const;
  return {
    message,
    metadata: { ...options.metadata },
    labels: [...(options.labels ?? [])],
    kind: kind[options.kind ?? "manual"],
    expectedHead: head === undefined ? undefined : head && head !== "none" ? `snapshots/${head}` : "none",
    note: options.note,
    reward: options.reward,
    buffered: options.buffered,
    withChanges: options.withChanges,
  };
}
