/** Operations, merges, reviews, episodes, projects and keys. */
import type * as api from "../generated/api.js";
import { enumWord, short, timeOf, unescape } from "../text.js";
import { type ChangeSummary, type Snapshot, changeSummary, optionalSnapshot } from "./tree.js";

export type MergeHow =
  | "already"
  | "forward"
  | "merged"
  | "refused"
  | "replayed"
  | "waiting"
  | "review"
  | "unspecified";
export type Scope = "read" | "write" | "merge" | "run" | "admin";

/** The effect of an operation on one name. */
export interface ReferenceChange {
  /** For example `workspace/main` or `label/v1`. */
  readonly reference: string;
  /** The id of a snapshot; empty for none. */
  readonly before: string;
  readonly after: string;
}

/** A change of state in the log of operations. */
export interface Operation {
  readonly sequence: number;
  readonly actor: string;
  /** For example `commit`, `capture`, `fork`, `restore`, `undo`. */
  readonly action: string;
  readonly time: Date | undefined;
  /** The operation that this one undid or redid; 0 for none. */
  readonly reverts: number;
  readonly changes: readonly ReferenceChange[];
  readonly changesLeftOut: number;
}

/** A file that both sides changed, or a path that could not be merged. */
export interface MergedPath {
  readonly path: string;
  /** `merged`, `ours`, `theirs` or `conflict`; of a conflict its kind, for example `contents`. */
  readonly result: string;
  readonly way: string;
  readonly others: readonly string[];
  readonly remembered: string;
}

/** The result of a merge, as the server reports it. */
export interface MergeResult {
  readonly how: MergeHow;
  readonly target: string;
  readonly head: Snapshot | undefined;
  /** Files whose bytes both sides had changed. */
  readonly files: readonly MergedPath[];
  readonly conflicts: readonly MergedPath[];
  /** How many paths of the target changed. */
  readonly changed: number;
  readonly reason: string;
}

/** A merge that waits in the queue, or for a person. */
export interface QueueEntry {
  readonly id: string;
  readonly workspace: string;
  readonly target: string;
  readonly snapshot: string;
  readonly actor: string;
  readonly message: string;
  readonly ends: boolean;
  readonly isHeld: boolean;
  readonly time: Date | undefined;
}

/** The result of `complete` or `publish`. */
export interface Submitted {
  readonly entry: QueueEntry | undefined;
  readonly merge: MergeResult | undefined;
  /** Whether the workspace was deleted, because its work has landed. */
  readonly hasEnded: boolean;
}

/** A merge that waits for a person. */
export interface ReviewInfo {
  readonly entry: QueueEntry;
  readonly conflicts: readonly MergedPath[];
  readonly reason: string;
}

/** An episode as the server described it last. */
export interface EpisodeInfo {
  readonly name: string;
  /** `open`, `kept` for a finished one, or `dropping`. */
  readonly state: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly createTime: Date | undefined;
}

/** A step of an episode: a snapshot with its parent step, its reward and the numbers of a search. */
export interface Step {
  readonly number: number;
  readonly snapshot: string;
  /** The number of the step before it; 0 for a root. */
  readonly parent: number;
  readonly depth: number;
  readonly reward: number | undefined;
  readonly visits: number;
  readonly total: number;
  readonly metadata: Readonly<Record<string, string>>;
  readonly time: Date | undefined;
}

/** Two steps side by side. */
export interface StepComparison {
  /** The last common step; missing if they have different roots. */
  readonly common: Step | undefined;
  readonly before: readonly Step[];
  readonly after: readonly Step[];
  readonly rewardDifference: number | undefined;
  readonly summary: ChangeSummary;
}

/** A project of a server: a store of its own. */
export interface Project {
  readonly name: string;
  readonly createTime: Date | undefined;
  readonly deleteTime: Date | undefined;
}

/** The disk space of a project and the number of its objects. */
export interface ProjectUsage {
  readonly diskBytes: number;
  readonly workspaces: number;
  readonly operations: number;
}

/** An API key without its secret. */
export interface Key {
  readonly id: string;
  readonly agent: string;
  readonly scopes: readonly string[];
  /** The projects that it may use; empty for all. */
  readonly projects: readonly string[];
  readonly createTime: Date | undefined;
  readonly expireTime: Date | undefined;
  readonly revokeTime: Date | undefined;
}

/** A key that was just made. Its text cannot be shown again. */
export interface NewKey {
  readonly key: Key;
  readonly text: string;
}

export function operation(value: api.Operation | null | undefined): Operation {
  return {
    sequence: value?.sequence ?? 0,
    actor: value?.actor ?? "",
    action: value?.action ?? "",
    time: timeOf(value?.time),
    reverts: value?.reverts ?? 0,
    changes: (value?.changes ?? []).map((one) => ({
      reference: one.reference ?? "",
      before: short(one.before),
      after: short(one.after),
    })),
    changesLeftOut: value?.changesLeftOut ?? 0,
  };
}

export function mergedPath(value: api.MergedPath): MergedPath {
  return {
    path: unescape(value.path ?? ""),
    result: value.result ?? "",
    way: value.way ?? "",
    others: (value.others ?? []).map(unescape),
    remembered: value.remembered ?? "",
  };
}

export function mergeResult(value: api.Merge | null | undefined): MergeResult {
  return {
    how: enumWord(value?.how ?? "MERGE_HOW_UNSPECIFIED", "MERGE_HOW_") as MergeHow,
    target: short(value?.target),
    head: optionalSnapshot(value?.head),
    files: (value?.files ?? []).map(mergedPath),
    conflicts: (value?.conflicts ?? []).map(mergedPath),
    changed: value?.changed ?? 0,
    reason: value?.reason ?? "",
  };
}

export function queueEntry(value: api.QueueEntry | null | undefined): QueueEntry {
  return {
    id: short(value?.name),
    workspace: short(value?.workspace),
    target: short(value?.target),
    snapshot: short(value?.snapshot),
    actor: value?.actor ?? "",
    message: value?.message ?? "",
    ends: value?.ends ?? false,
    isHeld: value?.held ?? false,
    time: timeOf(value?.time),
  };
}

export function submitted(value: api.CompleteWorkspaceResponse): Submitted {
  return {
    entry: value.entry ? queueEntry(value.entry) : undefined,
    merge: value.merge ? mergeResult(value.merge) : undefined,
    hasEnded: value.ended ?? false,
  };
}

export function reviewInfo(value: api.Review | null | undefined): ReviewInfo {
  return {
    entry: queueEntry(value?.entry),
    conflicts: (value?.conflicts ?? []).map(mergedPath),
    reason: value?.reason ?? "",
  };
}

export function episodeInfo(value: api.Episode | null | undefined): EpisodeInfo {
  return {
    name: short(value?.name),
    state: value?.state ?? "",
    metadata: value?.metadata ?? {},
    createTime: timeOf(value?.createTime),
  };
}

export function step(value: api.Step | null | undefined): Step {
  return {
    number: value?.number ?? 0,
    snapshot: short(value?.snapshot),
    parent: value?.parent ?? 0,
    depth: value?.depth ?? 0,
    reward: value?.reward ?? undefined,
    visits: value?.visits ?? 0,
    total: value?.total ?? 0,
    metadata: value?.metadata ?? {},
    time: timeOf(value?.time),
  };
}

export function stepComparison(value: api.CompareStepsResponse): StepComparison {
  return {
    common: value.common ? step(value.common) : undefined,
    before: (value.before ?? []).map(step),
    after: (value.after ?? []).map(step),
    rewardDifference: value.rewardDifference ?? undefined,
    summary: changeSummary(value.summary),
  };
}

export function project(value: api.Project | null | undefined): Project {
  return { name: short(value?.name), createTime: timeOf(value?.createTime), deleteTime: timeOf(value?.deleteTime) };
}

export function key(value: api.Key | null | undefined): Key {
  return {
    id: short(value?.name),
    agent: value?.agent ?? "",
    scopes: value?.scopes ?? [],
    projects: value?.projects ?? [],
    createTime: timeOf(value?.createTime),
    expireTime: timeOf(value?.expireTime),
    revokeTime: timeOf(value?.revokeTime),
  };
}
