/** Workspaces that follow a source, and overlaps of open workspaces. */
import type * as api from "../generated/api.js";
import { short, timeOf, unescape } from "../text.js";
import { type MergeResult, mergeResult } from "./service.js";

export type FollowMode = "lazy" | "regular" | "event";

/** One update of a follower. */
export interface FollowUpdate {
  /** `updated`, `already` (nothing new), `conflicts`, `refused` (by the policy) or `failed`. */
  readonly how: string;
  /** Files that were updated. */
  readonly synced: number;
  /** Files that the source changed and that stayed as they are. */
  readonly skipped: number;
  /** Files that the source changed since the last update. */
  readonly total: number;
  readonly conflicts: number;
  readonly sourceSnapshot: string;
  readonly reason: string;
  readonly time: Date | undefined;
}

/** The result of `follow` or `update`. */
export interface Followed {
  /** The update; undefined for a dry run. */
  readonly update: FollowUpdate | undefined;
  /** The merge, if there was something new. */
  readonly merge: MergeResult | undefined;
}

/** A workspace that changed a path. */
export interface OverlapSide {
  readonly workspace: string;
  readonly agent: string;
  readonly since: Date | undefined;
  /** Whether the change, or a part of it, is in no snapshot yet. */
  readonly isUncommitted: boolean;
}

/** Two workspaces that changed the same file. */
export interface OverlapPair {
  readonly left: string;
  readonly right: string;
  /** `file` (other parts of it, or no text), `lines`, `keys` (of a JSON document) or `same` (one change). */
  readonly kind: string;
  /** Whether the file would merge now: `clean`, `conflict` or `unknown`. */
  readonly merge: string;
  /** The common lines, in the version from which both started. */
  readonly lines: readonly { readonly first: number; readonly last: number }[];
  /** The common keys as JSON pointers. */
  readonly keys: readonly string[];
}

/** A path that several open workspaces changed. */
export interface Overlap {
  readonly path: string;
  readonly sides: readonly OverlapSide[];
  readonly pairs: readonly OverlapPair[];
  /** When the second of them changed the path. */
  readonly since: Date | undefined;
}

export function followed(value: api.FollowSourceResponse | api.UpdateFollowerResponse): Followed {
  return {
    update: value.update ? followUpdate(value.update) : undefined,
    merge: value.merge ? mergeResult(value.merge) : undefined,
  };
}

function followUpdate(value: api.FollowUpdate): FollowUpdate {
  return {
    how: value.how ?? "",
    synced: value.synced ?? 0,
    skipped: value.skipped ?? 0,
    total: value.total ?? 0,
    conflicts: value.conflicts ?? 0,
    sourceSnapshot: short(value.sourceSnapshot),
    reason: value.reason ?? "",
    time: timeOf(value.time),
  };
}

export function overlap(value: api.Overlap): Overlap {
  return {
    path: unescape(value.path ?? ""),
    sides: (value.sides ?? []).map((side) => ({
      workspace: short(side.workspace),
      agent: side.agent ?? "",
      since: timeOf(side.since),
      isUncommitted: side.uncommitted ?? false,
    })),
    pairs: (value.pairs ?? []).map((pair) => ({
      left: short(pair.left),
      right: short(pair.right),
      kind: pair.kind ?? "",
      merge: pair.merge ?? "",
      lines: (pair.lines ?? []).map(({ first = 0, last = 0 }) => ({ first, last })),
      keys: pair.keys ?? [],
    })),
    since: timeOf(value.since),
  };
}
