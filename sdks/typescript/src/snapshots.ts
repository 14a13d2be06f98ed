/** Snapshots and labels of a project. */
import {
  type Change,
  type ChangeSummary,
  EMPTY,
  type FileInsight,
  type Insight,
  type Label,
  type Patch,
  type Revision,
  type Snapshot,
  change,
  changeSummary,
  fileInsight,
  label,
  revisionText,
  snapshot,
  workspaceName,
} from "./models.js";
import { escapePath, unescape } from "./text.js";
import type { CallOptions, ChangeOptions, Transport } from "./transport.js";

const PAGE_SIZE = 1000;

/** One side of a diff. */
export type Side = Revision | typeof EMPTY;

/** Options of calls that compare two snapshots. */
export interface CompareOptions extends CallOptions {
  /** Only these paths and everything below them. */
  paths?: readonly string[];
  /** Leave out every entry called `.git`. */
  withoutGit?: boolean;
}

/** Options of a diff. */
export interface DiffOptions extends CompareOptions {
  /** Report a removed and an added file with the same contents as one rename; true by default. */
  renames?: boolean;
  /** Report entries that differ in nothing but their time, too. */
  times?: boolean;
}

interface WorkspaceOption {
  /** The workspace that `@` stands for. */
  workspace?: string;
}

/** Snapshots and their differences, as `client.snapshots`. `@` stands for the head of `workspace`. */
export class Snapshots {
  constructor(private readonly transport: Transport) {}

  /** Returns one snapshot by any of its names. */
  async get(revision: Revision, options: CallOptions & WorkspaceOption = {}): Promise<Snapshot> {
    const input = { path: { revision: revisionText(revision) }, query: { workspace: workspaceName(options.workspace) } };
    const answer = await this.transport.call("GetSnapshot", input, options);
    return snapshot(answer.snapshot ?? {});
  }

  /**
   * Yields the snapshots that led to some revisions, newest first; without any, to the head of the workspace; with `all`,
   * to all workspaces and labels. `exclude` leaves out these snapshots and all that led to them.
   */
  async *list(
    options: CallOptions &
      WorkspaceOption & {
        revisions?: readonly Revision[];
        all?: boolean;
        path?: string;
        exclude?: readonly Revision[];
      } = {},
  ): AsyncGenerator<Snapshot, void, undefined> {
    const query = {
      revisions: (options.revisions ?? []).map(revisionText),
      workspace: workspaceName(options.workspace),
      all: options.all,
      paths: options.path === undefined ? [] : [escapePath(options.path)],
      exclude: (options.exclude ?? []).map(revisionText),
      pageSize: PAGE_SIZE,
    };
    for await (const page of this.transport.pages("ListSnapshots", { query }, options)) {
      yield* (page.snapshots ?? []).map(snapshot);
    }
  }

  /** Yields the paths that differ between two snapshots. */
  async *diff(
    before: Side,
    after: Side,
    options: DiffOptions & WorkspaceOption = {},
  ): AsyncGenerator<Change, void, undefined> {
    const query = { ...sides(before, after, options), renames: options.renames ?? true, times: options.times };
    for await (const message of this.transport.messages("DiffStates", { query }, options)) {
      yield* (message.changes ?? []).map(change);
    }
  }

  /** Returns the measures of a change: lines, languages, sizes, hints about risks, a score. */
  async insight(before: Side, after: Side, options: CompareOptions & WorkspaceOption = {}): Promise<Insight> {
    const files: FileInsight[] = [];
    let summary: ChangeSummary = changeSummary(undefined);
    const query = sides(before, after, options);
    for await (const message of this.transport.messages("InspectChange", { query }, options)) {
      files.push(...(message.files ?? []).map(fileInsight));
      if (message.summary) summary = changeSummary(message.summary);
    }
    return { files, summary };
  }

  /** Returns a unified patch that `git apply` takes. */
  async patch(
    before: Side,
    after: Side,
    options: CompareOptions & WorkspaceOption & { contextLines?: number } = {},
  ): Promise<Patch> {
    const pieces: Buffer[] = [];
    const omissions: { path: string; message: string }[] = [];
    const query = { ...sides(before, after, options), contextLines: options.contextLines };
    for await (const message of this.transport.messages("GetPatch", { query }, options)) {
      pieces.push(Buffer.from(message.data ?? "", "base64"));
      for (const one of message.leftOut ?? []) {
        omissions.push({ path: unescape(one.path ?? ""), message: one.message ?? "" });
      }
    }
    const data = Buffer.concat(pieces);
    return { data, text: data.toString("utf8"), omissions };
  }
}

function sides(before: Side, after: Side, options: CompareOptions & WorkspaceOption): Record<string, unknown> {
  const side = (name: string, revision: Side): Record<string, unknown> =>
    revision === EMPTY ? { [`${name}.empty`]: true } : { [`${name}.revision`]: revisionText(revision) };
  return {
    ...side("before", before),
    ...side("after", after),
    paths: (options.paths ?? []).map(escapePath),
    withoutGit: options.withoutGit,
    workspace: workspaceName(options.workspace),
  };
}

/** Names on snapshots, as `client.labels`. */
export class Labels {
  constructor(private readonly transport: Transport) {}

  /** Puts a label on a snapshot, or moves it there. With `workspace` an undo in it takes the label back. */
  async set(name: string, revision: Revision, options: ChangeOptions & WorkspaceOption = {}): Promise<Label> {
    const body = { revision: revisionText(revision), workspace: workspaceName(options.workspace) };
    const answer = await this.transport.call("SetLabel", { path: { label_id: name }, body }, options);
    return label(answer.label);
  }

  /** Removes a label. The snapshot stays. */
  async delete(name: string, options: ChangeOptions = {}): Promise<void> {
    await this.transport.call("DeleteLabel", { path: { name } }, options);
  }

  /** Yields the labels by name. */
  async *list(prefix = "", options: CallOptions = {}): AsyncGenerator<Label, void, undefined> {
    const query = { prefix, pageSize: PAGE_SIZE };
    for await (const page of this.transport.pages("ListLabels", { query }, options)) {
      yield* (page.labels ?? []).map(label);
    }
  }
}
