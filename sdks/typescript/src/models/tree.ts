/** Files, snapshots, diffs, workspaces, labels and state values. */
import type * as api from "../generated/api.js";
import { enumWord, short, timeOf, unescape } from "../text.js";

export type EntryKind =
  | "file"
  | "directory"
  | "symlink"
  | "fifo"
  | "socket"
  | "char_device"
  | "block_device"
  | "conflict"
  | "unspecified";
export type ChangeKind = "added" | "removed" | "modified" | "kind_changed" | "metadata" | "renamed" | "unspecified";
export type CommitKind = "manual" | "step" | "automatic";
/** Any value that JSON has. */
export type JsonValue = null | boolean | number | string | JsonValue[] | { [name: string]: JsonValue };

/** The tree without entries, as one side of a diff. */
export const EMPTY: unique symbol = Symbol("the empty tree");

/** A snapshot: the value itself, its id or the beginning of it, a label, `@`, `main@`, `@~2`, `@{10 minutes ago}`. */
export type Revision = string | { readonly id: string };

/** The metadata of a path. */
export interface FileInfo {
  readonly path: string;
  readonly kind: EntryKind;
  /** Bytes of a file; length of a symlink's target. */
  readonly size: number;
  /** Permission bits. */
  readonly mode: number;
  /** Changes with every change of the entry. */
  readonly etag: string;
  /** Equal for files with equal bytes. */
  readonly contentId: string;
  readonly mediaType: string;
  readonly modifyTime: Date | undefined;
  readonly linkTarget: string;
  readonly uid: number;
  readonly gid: number;
  /** How many names the file has. */
  readonly links: number;
  readonly xattrs: readonly string[];
}

/** The result of a write of a whole file. */
export interface Written {
  readonly path: string;
  readonly etag: string;
  readonly size: number;
  /** The BLAKE3 digest of the bytes, in hex. */
  readonly digest: string;
}

/** The result of an edit of a text file. */
export interface Edited {
  readonly file: FileInfo;
  /** How many places were replaced, or how many hunks were applied. */
  readonly replacements: number;
}

/** A line that matches a search, or a binary file that does. */
export interface Match {
  readonly path: string;
  /** From 1; 0 for a binary file. */
  readonly line: number;
  readonly text: string;
  readonly isBinary: boolean;
}

/** A name in a tree, as a diff shows it. */
export interface Entry {
  readonly path: string;
  readonly kind: EntryKind;
  readonly mode: number;
  readonly size: number;
  readonly modifyTime: Date | undefined;
  readonly symlinkTarget: string;
}

/** One path that differs between two states. */
export interface Change {
  /** Where it is now; for something removed, where it was. */
  readonly path: string;
  readonly kind: ChangeKind;
  /** For a rename: where it was. */
  readonly fromPath: string;
  /** Only of diffs. */
  readonly before: Entry | undefined;
  /** Only of diffs. */
  readonly after: Entry | undefined;
  /** Which attributes differ beside the contents: mode, mtime, owner, xattrs, link. Only of diffs. */
  readonly attributes: readonly string[];
}

/** A tree at one moment. It is accepted wherever a revision is. */
export interface Snapshot {
  readonly id: string;
  readonly message: string;
  readonly author: string;
  readonly time: Date | undefined;
  readonly parents: readonly string[];
  readonly metadata: Readonly<Record<string, string>>;
  readonly labels: readonly string[];
  readonly workspaces: readonly string[];
  /** The id of its tree: equal trees have equal ids. */
  readonly tree: string;
  readonly note: string;
  readonly reward: number | undefined;
  readonly conflicts: number;
  /** Whether retention dropped its tree. */
  readonly isThinned: boolean;
}

/** A workspace as the server described it last. */
export interface WorkspaceInfo {
  readonly name: string;
  /** The id of the newest snapshot; empty while nothing was committed. */
  readonly head: string;
  readonly base: string;
  readonly agent: string;
  /** The workspace that its changes are merged into; empty for none. */
  readonly target: string;
  readonly etag: string;
  readonly createTime: Date | undefined;
}

/** The uncommitted changes of a workspace. */
export interface Status {
  readonly head: string;
  /** The snapshot that the live tree follows; differs from the head if the head moved meanwhile. */
  readonly base: string;
  readonly changes: readonly Change[];
  /** Whether more paths differ than `changes` lists. */
  readonly isTruncated: boolean;
  /** Whether state values differ. */
  readonly stateChanged: boolean;
  /** Whether a file or a state value differs. */
  readonly hasChanges: boolean;
}

/** The counts of a change. */
export interface ChangeSummary {
  readonly filesAdded: number;
  readonly filesRemoved: number;
  readonly filesModified: number;
  readonly filesRenamed: number;
  readonly filesOther: number;
  readonly directoriesChanged: number;
  readonly linesAdded: number;
  readonly linesRemoved: number;
  readonly bytesBefore: number;
  readonly bytesAfter: number;
  readonly binary: number;
  readonly riskWeight: number;
  readonly risks: Readonly<Record<string, number>>;
  /** For ranking: the smaller, the less there is to review. */
  readonly score: number;
}

/** A hint about a change, for example `secret` or `executable`. */
export interface Risk {
  readonly kind: string;
  readonly message: string;
  readonly weight: number;
}

/** The measures of a change of one file. */
export interface FileInsight {
  readonly change: Change;
  readonly isBinary: boolean;
  readonly linesAdded: number;
  readonly linesRemoved: number;
  readonly bytesBefore: number;
  readonly bytesAfter: number;
  readonly language: string;
  readonly similarityPercent: number;
  readonly risks: readonly Risk[];
}

/** The measures of a change: file by file, and in all. */
export interface Insight {
  readonly files: readonly FileInsight[];
  readonly summary: ChangeSummary;
}

/** A unified patch that `git apply` takes. */
export interface Patch {
  readonly data: Uint8Array;
  /** The patch as text; a byte that is not UTF-8 becomes U+FFFD. */
  readonly text: string;
  /** Paths that differ in a way that a patch cannot express, with the reason. */
  readonly omissions: readonly { readonly path: string; readonly message: string }[];
}

/** The result of a commit. */
export interface Commit {
  /** The id of the snapshot; empty without one. */
  readonly id: string;
  /** The head afterwards; missing only for a workspace without a snapshot and without changes. */
  readonly snapshot: Snapshot | undefined;
  /** False if there was nothing to commit. */
  readonly isChanged: boolean;
  /** Whether the head had moved, so that the changes were merged with it. */
  readonly isMerged: boolean;
  readonly changes: readonly Change[];
  readonly summary: ChangeSummary | undefined;
}

/** The result of a restore. */
export interface Restored {
  /** Whether the tree was another one. */
  readonly isChanged: boolean;
  /** Of a dry run: the paths that would change. */
  readonly changes: readonly Change[];
  readonly isDryRun: boolean;
}

/** Consecutive lines of a file that came from one snapshot. */
export interface BlamedLines {
  /** From 1. */
  readonly firstLine: number;
  readonly lines: readonly string[];
  readonly snapshot: Snapshot;
  /** Where the lines were then. */
  readonly path: string;
  readonly originalFirstLine: number;
}

/** A snapshot that changed a path. */
export interface Version {
  readonly snapshot: Snapshot;
  readonly path: string;
  readonly kind: ChangeKind;
  readonly fromPath: string;
  readonly entry: Entry | undefined;
}

/** A name on a snapshot. */
export interface Label {
  readonly name: string;
  /** The id of the snapshot. */
  readonly snapshot: string;
}

/** A small JSON value of a tree. */
export interface StateValue {
  readonly key: string;
  readonly value: JsonValue;
  readonly etag: string;
}

/** Returns the text of a revision; empty for none. */
export function revisionText(revision: Revision | undefined): string {
  if (revision === undefined) return "";
  const text = typeof revision === "string" ? revision : revision.id;
  return text.startsWith("snapshots/") ? text.slice("snapshots/".length) : text;
}

/** Returns the resource name of a workspace; empty for none. */
export function workspaceName(name: string | undefined): string {
  return name ? `workspaces/${name}` : "";
}

export function fileInfo(value: api.FileStat): FileInfo {
  return {
    path: unescape(value.path ?? ""),
    kind: enumWord(value.kind, "ENTRY_KIND_") as EntryKind,
    size: value.size ?? 0,
    mode: value.mode ?? 0,
    etag: value.etag ?? "",
    contentId: value.contentId ?? "",
    mediaType: value.mediaType ?? "",
    modifyTime: timeOf(value.modifyTime),
    linkTarget: unescape(value.linkTarget ?? ""),
    uid: value.uid ?? 0,
    gid: value.gid ?? 0,
    links: value.links ?? 1,
    xattrs: (value.xattrs ?? []).map(unescape),
  };
}

export function match(value: api.FileMatch): Match {
  return {
    path: unescape(value.path ?? ""),
    line: value.line ?? 0,
    text: value.text ?? "",
    isBinary: value.binary ?? false,
  };
}

export function entry(value: api.Entry | null | undefined): Entry | undefined {
  if (!value) return undefined;
  return {
    path: unescape(value.path ?? ""),
    kind: enumWord(value.kind, "ENTRY_KIND_") as EntryKind,
    mode: value.mode ?? 0,
    size: value.size ?? 0,
    modifyTime: timeOf(value.modifyTime),
    symlinkTarget: unescape(value.symlinkTarget ?? ""),
  };
}

export function change(value: api.Change & api.FileChange): Change {
  return {
    path: unescape(value.path ?? ""),
    kind: enumWord(value.kind, "CHANGE_KIND_") as ChangeKind,
    fromPath: unescape(value.fromPath ?? ""),
    before: entry(value.before),
    after: entry(value.after),
    attributes: value.attributes ?? [],
  };
}

export function snapshot(value: api.Snapshot): Snapshot {
  return {
    id: short(value.name),
    message: value.message ?? "",
    author: value.author ?? "",
    time: timeOf(value.time),
    parents: (value.parents ?? []).map(short),
    metadata: value.metadata ?? {},
    labels: value.labels ?? [],
    workspaces: value.workspaces ?? [],
    tree: value.tree ?? "",
    note: value.note ?? "",
    reward: value.reward ?? undefined,
    conflicts: value.conflicts ?? 0,
    isThinned: value.thinned ?? false,
  };
}

export function optionalSnapshot(value: api.Snapshot | null | undefined): Snapshot | undefined {
  return value ? snapshot(value) : undefined;
}

export function workspaceInfo(value: api.Workspace | null | undefined): WorkspaceInfo {
  return {
    name: short(value?.name),
    head: short(value?.head),
    base: short(value?.base),
    agent: value?.agent ?? "",
    target: short(value?.target),
    etag: value?.etag ?? "",
    createTime: timeOf(value?.createTime),
  };
}

export function status(value: api.GetStatusResponse): Status {
  const changes = (value.changes ?? []).map(change);
  const stateChanged = value.stateChanged ?? false;
  return {
    head: short(value.head),
    base: short(value.base),
    changes,
    isTruncated: value.truncated ?? false,
    stateChanged,
    hasChanges: changes.length > 0 || stateChanged,
  };
}

export function changeSummary(value: api.ChangeSummary | null | undefined): ChangeSummary {
  return {
    filesAdded: value?.filesAdded ?? 0,
    filesRemoved: value?.filesRemoved ?? 0,
    filesModified: value?.filesModified ?? 0,
    filesRenamed: value?.filesRenamed ?? 0,
    filesOther: value?.filesOther ?? 0,
    directoriesChanged: value?.directoriesChanged ?? 0,
    linesAdded: value?.linesAdded ?? 0,
    linesRemoved: value?.linesRemoved ?? 0,
    bytesBefore: value?.bytesBefore ?? 0,
    bytesAfter: value?.bytesAfter ?? 0,
    binary: value?.binary ?? 0,
    riskWeight: value?.riskWeight ?? 0,
    risks: value?.risks ?? {},
    score: value?.score ?? 0,
  };
}

export function fileInsight(value: api.FileInsight): FileInsight {
  return {
    change: change(value.change ?? {}),
    isBinary: value.binary ?? false,
    linesAdded: value.linesAdded ?? 0,
    linesRemoved: value.linesRemoved ?? 0,
    bytesBefore: value.bytesBefore ?? 0,
    bytesAfter: value.bytesAfter ?? 0,
    language: value.language ?? "",
    similarityPercent: value.similarityPercent ?? 0,
    risks: (value.risks ?? []).map((risk) => ({
      kind: risk.kind ?? "",
      message: risk.message ?? "",
      weight: risk.weight ?? 0,
    })),
  };
}

export function commit(value: api.CommitEditsResponse & { merged?: boolean }): Commit {
  const made = optionalSnapshot(value.snapshot);
  return {
    id: made?.id ?? "",
    snapshot: made,
    isChanged: value.changed ?? false,
    isMerged: value.merged ?? false,
    changes: (value.changes ?? []).map(change),
    summary: value.summary ? changeSummary(value.summary) : undefined,
  };
}

export function blamedLines(value: api.BlameFileResponse): BlamedLines[] {
  const lines = unescape(value.text ?? "").split("\n");
  return (value.runs ?? []).map((run) => {
    const first = run.firstLine ?? 0;
    return {
      firstLine: first + 1,
      lines: lines.slice(first, first + (run.lines ?? 0)),
      snapshot: snapshot(run.snapshot ?? {}),
      path: unescape(run.path ?? ""),
      originalFirstLine: (run.originalFirstLine ?? 0) + 1,
    };
  });
}

export function version(value: api.ListVersionsResponse): Version {
  return {
    snapshot: snapshot(value.snapshot ?? {}),
    path: unescape(value.path ?? ""),
    kind: enumWord(value.kind, "CHANGE_KIND_") as ChangeKind,
    fromPath: unescape(value.fromPath ?? ""),
    entry: entry(value.entry),
  };
}

export function label(value: api.Label | null | undefined): Label {
  return { name: short(value?.name), snapshot: short(value?.snapshot) };
}

export function stateValue(value: api.StateValue | null | undefined): StateValue {
  return { key: value?.key ?? "", value: JSON.parse(value?.json ?? "null") as JsonValue, etag: value?.etag ?? "" };
}
