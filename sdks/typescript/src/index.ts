/**
 * Client of Amalgam: versioned workspaces for agents, with forks, snapshots, diffs and merges.
 *
 * ```ts
 * import { Amalgam } from "@amalgam/sdk";
 *
 * await using client = new Amalgam(); // the local store; { url, apiKey } for a server
 * const ws = await client.workspaces.create("fix-auth");
 * await ws.files.write("a.py", "print(1)\n");
 * await ws.commit("first version");
 * ```
 */
export { Keys, Projects, Reviews } from "./admin.js";
export { Amalgam, type ClientOptions } from "./client.js";
export { Command, type CommandOptions, Commands, type OutputCallbacks } from "./commands.js";
export * as edits from "./edits.js";
export type { Attributes, Edit } from "./edits.js";
export { Episode, Episodes, type StepNumber } from "./episodes.js";
export * as errors from "./errors.js";
export { AmalgamError } from "./errors.js";
export { Events, Subscription } from "./events.js";
export type { Attempt, ExploreOptions, SandboxExploreOptions } from "./explore.js";
export { Files, type RangeOptions, type ReadOptions } from "./files.js";
export type * as api from "./generated/api.js";
export { History } from "./history.js";
export { Conflict, Merge, type MergeSide, type OnConflict } from "./merge.js";
export { Mount, type MountBackend } from "./mount.js";
export { EMPTY } from "./models.js";
export type {
  BatchDeleted,
  BlamedLines,
  Change,
  ChangeKind,
  ChangeSummary,
  CommandEvent,
  CommandInfo,
  CommandResult,
  Commit,
  CommitKind,
  Edited,
  EnforcedLimit,
  Entry,
  EntryKind,
  EpisodeInfo,
  FileInfo,
  FileInsight,
  FollowMode,
  FollowUpdate,
  Followed,
  ForkRun,
  Insight,
  JsonValue,
  Key,
  Label,
  Match,
  MergeHow,
  MergeResult,
  MergedPath,
  NewKey,
  Operation,
  Overlap,
  OverlapPair,
  OverlapSide,
  Patch,
  Permission,
  Policy,
  PolicyComplaint,
  PolicyLevel,
  PolicySet,
  PortUrl,
  Project,
  ProjectUsage,
  QueueEntry,
  ReferenceChange,
  Restored,
  ReviewInfo,
  Revision,
  Risk,
  SandboxInfo,
  SandboxLogs,
  SandboxState,
  SandboxStats,
  Scope,
  Snapshot,
  StateValue,
  Status,
  Step,
  StepComparison,
  Submitted,
  Template,
  Version,
  WorkspaceInfo,
  Written,
} from "./models.js";
export { Policies } from "./policy.js";
export { Radar, type RadarOptions } from "./radar.js";
export {
  type CreateSandboxOptions,
  type LogOptions,
  type RunOnForkOptions,
  Sandbox,
  type SandboxOptions,
  Sandboxes,
  Templates,
  withSandbox,
} from "./sandboxes.js";
export { type CompareOptions, type DiffOptions, Labels, type Side, Snapshots } from "./snapshots.js";
export { State } from "./state.js";
export { Terminal, type TerminalOptions, Terminals } from "./terminals.js";
export type { CallOptions, ChangeOptions, Content, Options } from "./transport.js";
export { VERSION } from "./version.js";
export { type CommitEditsOptions, type CommitOptions, type SubmitOptions, Workspace } from "./workspace.js";
export { type CreateWorkspaceOptions, Workspaces } from "./workspaces.js";
