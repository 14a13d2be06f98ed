// Generated from the OpenAPI document of the server by scripts/generate.mjs; do not edit.
/* eslint-disable */

export interface AcceptReviewRequest {
  dryRun?: boolean;
  name?: string;
  requestId?: string;
}

export interface AcceptReviewResponse {
  merge?: Merge | null;
}

export interface ApplyEditsRequest {
  /** The edits, each on the tree that those before it leave. At most 10,000, with at most 32 MiB of data. */
  edits?: FileEdit[];
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

export interface ApplyEditsResponse {
  /** For each edit the entry afterwards, in the order of the request; without a path for one that has no entry. */
  files?: FileStat[];
}

/** An event of a command. */
export interface AttachCommandResponse {
  commandId?: string;
  /** Output; bytes that are not UTF-8 are replaced. */
  data?: string;
  /** For `exit`. */
  exitCode?: number;
  /** For `error`. */
  message?: string;
  /** The offset to attach from to go on after this event. */
  nextOffset?: number;
  /** Output, if the caller asked for bytes. */
  output?: string;
  /** Milliseconds since 1970. */
  timestamp?: number;
  /** For `exit`: there was more output. For output: the bytes before it are not kept any more. */
  truncated?: boolean;
  /** `stdout`, `stderr`, `exit` or `error`. */
  type?: string;
}

/** An event of a terminal. */
export interface AttachTerminalResponse {
  data?: string;
  exitCode?: number;
  message?: string;
  /** The offset to attach from to go on after this event. */
  nextOffset?: number;
  /** `output`, `exit` or `error`. */
  type?: string;
}

/** Sets attributes of an entry. Unset ones stay. */
export interface AttributesEdit {
  /** Only if the entry has this etag; STALE_FILE otherwise. */
  ifMatch?: string;
  /** Permission bits. */
  mode?: number;
  /** When its bytes changed last. */
  modifyTime?: string | null;
  /** The path. */
  path?: string;
  /** Names of extended attributes to remove. */
  removeXattrs?: string[];
  /** Extended attributes to set, by name. */
  setXattrs?: Record<string, string>;
}

export interface BatchDeleteSandboxesRequest {
  /** At most 50. */
  ids?: string[];
  keepWorkspace?: boolean;
}

export interface BatchDeleteSandboxesResponse {
  failed?: FailedDeletion[];
  /** The sandboxes that were deleted. */
  succeeded?: string[];
}

export interface BeginEpisodeRequest {
  /** Without `episodes/`. */
  episodeId?: string;
  /** Further small values to store with it. */
  metadata?: Record<string, string>;
  /** Makes a retry return the first result: see docs/API.md. */
  requestId?: string;
}

export interface BeginEpisodeResponse {
  /** The episode. */
  episode?: Episode | null;
}

export interface BlameFileResponse {
  runs?: BlamedLines[];
  text?: string;
}

/** Lines that came from one snapshot together. */
export interface BlamedLines {
  /** From 0. */
  firstLine?: number;
  lines?: number;
  originalFirstLine?: number;
  /** Where the lines were then. */
  path?: string;
  snapshot?: Snapshot | null;
}

/** Rules for one call, before all others. */
export interface CallRules {
  /** Paths with the way in which they are merged. */
  ways?: PathWay[];
}

/** One path that differs. */
export interface Change {
  after?: Entry | null;
  /** Which attributes differ beside the contents: mode, mtime, owner, xattrs, link. */
  attributes?: string[];
  before?: Entry | null;
  /** For a rename: where it was. */
  fromPath?: string;
  kind?: "CHANGE_KIND_UNSPECIFIED" | "CHANGE_KIND_ADDED" | "CHANGE_KIND_REMOVED" | "CHANGE_KIND_MODIFIED" | "CHANGE_KIND_KIND_CHANGED" | "CHANGE_KIND_METADATA" | "CHANGE_KIND_RENAMED";
  /** Where it is now; for something removed, where it was. */
  path?: string;
}

/** What a change comes to in all. */
export interface ChangeSummary {
  binary?: number;
  bytesAfter?: number;
  bytesBefore?: number;
  directoriesChanged?: number;
  filesAdded?: number;
  filesModified?: number;
  filesOther?: number;
  filesRemoved?: number;
  filesRenamed?: number;
  linesAdded?: number;
  linesRemoved?: number;
  riskWeight?: number;
  risks?: Record<string, number>;
  /** A number for ranking: the smaller, the less there is to look at. */
  score?: number;
}

export interface CheckPolicyRequest {
  /** The text. */
  text?: string;
}

export interface CheckPolicyResponse {
  /** Empty if the policy can be used. */
  complaints?: PolicyComplaint[];
}

export interface CheckRulesRequest {
  /** What places are called by. */
  source?: string;
  text?: string;
}

export interface CheckRulesResponse {
  complaints?: RuleComplaint[];
}

export interface CollectGarbageRequest {
  /** Collects the stores of all projects, too, with the grace time of their settings. */
  stores?: boolean;
}

export interface CollectGarbageResponse {
  /** Sandboxes that were ended or forgotten. */
  cleanedSandboxes?: number;
  /** Directories of workspaces that no sandbox had. */
  cleanedWorkspaces?: number;
  /** Projects whose stores were collected. */
  collectedProjects?: number;
  /** Bytes that came free. */
  freedSpace?: number;
}

/** How far a collection is. */
export interface CollectProgress {
  /** Objects deleted so far. */
  deleted?: number;
  done?: number;
  /** `mark`, `survey`, `sweep`, `trim` or `reclaim`. */
  stage?: string;
  total?: number;
}

/** What a collection came to. */
export interface CollectResult {
  alive?: ObjectTally | null;
  /** What nothing leads to. */
  dead?: ObjectTally | null;
  diskBytesAfter?: number;
  /** All files of the store on the disk. */
  diskBytesBefore?: number;
  dryRun?: boolean;
  /** The stage in which it was ended; empty if it came to its end. */
  endedIn?: string;
  /** Deleted workspaces that were, or would be, forgotten because their grace time is over. */
  forgotten?: number;
  freed?: ObjectTally | null;
  /** The grace time that held. */
  graceSeconds?: number;
  journalBytesAfter?: number;
  /** Journals of mounts. A collection that is no dry run checkpoints what they hold, so that they begin anew. */
  journalBytesBefore?: number;
  /** Operations that went, or would go, from the log because it is long enough without them. */
  operationsTrimmed?: number;
  /** What references, pins and operations within the grace time named. */
  roots?: number;
  /** Snapshots whose trees went, or would go, by retention. */
  thinned?: number;
  /** When the oldest import or receive began that is under way and keeps `young`; absent without one. */
  waitingSince?: string | null;
  /** What is to be said beside, in words: that the clock jumped. */
  warnings?: string[];
  /** The same, but too young to go: work under way may need it. */
  young?: ObjectTally | null;
}

/** How to collect. */
export interface CollectStoreRequest {
  /** Find out what would go, and leave it. */
  dryRun?: boolean;
  /** For how long what can be undone is kept; absent for what the settings say. */
  graceSeconds?: number;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
}

/** Progress, then the result. */
export interface CollectStoreResponse {
  progress?: CollectProgress | null;
  result?: CollectResult | null;
}

export interface CommitEditsRequest {
  /** Return before the commit is on disk: it survives a crash of the process, not a power cut. */
  buffered?: boolean;
  /** The edits, each on the tree that those before it leave. At most 10,000, with at most 32 MiB of data. */
  edits?: FileEdit[];
  /** Only if this snapshot, `snapshots/{hex}`, is the head; STALE_HEAD otherwise. `none` for a workspace without a snapshot. */
  expectedHead?: string;
  /** How the snapshot came to be. */
  kind?: "COMMIT_KIND_UNSPECIFIED" | "COMMIT_KIND_MANUAL" | "COMMIT_KIND_STEP" | "COMMIT_KIND_AUTOMATIC";
  /** Labels to set on the snapshot. */
  labels?: string[];
  /** The message of the snapshot. */
  message?: string;
  /** Further small values to store with the snapshot. */
  metadata?: Record<string, string>;
  /** A note about the snapshot. */
  note?: string;
  /** Makes a retry return the first result: see docs/API.md. */
  requestId?: string;
  /** The snapshot that the edits are made on; empty for the head. If it is not the head, the result is merged with the head by three-way merge; a conflict is stored in the new snapshot. */
  revision?: string;
  /** The reward of the snapshot. */
  reward?: number;
  /** Return the paths that differ from the parent, at most 10,000. */
  withChanges?: boolean;
  /** Return the counts of the change. */
  withSummary?: boolean;
  /** `workspaces/{workspace}`, whose head moves. */
  workspace?: string;
}

export interface CommitEditsResponse {
  /** False if the edits changed nothing; the snapshot is then the head as it was. */
  changed?: boolean;
  /** The paths that differ from the parent, if asked for. */
  changes?: FileChange[];
  /** The snapshot: the new head. */
  snapshot?: Snapshot | null;
  /** The counts of the change, if asked for. */
  summary?: ChangeSummary | null;
}

export interface CommitWorkspaceRequest {
  /** Return before the commit is on disk: it survives a crash of the process, not a power cut. */
  buffered?: boolean;
  /** Only if this snapshot, `snapshots/{hex}`, is the head and the live tree follows it; STALE_HEAD otherwise. `none` for a workspace without a snapshot. Without it, a head that moved is merged with the changes. */
  expectedHead?: string;
  /** How the snapshot came to be. */
  kind?: "COMMIT_KIND_UNSPECIFIED" | "COMMIT_KIND_MANUAL" | "COMMIT_KIND_STEP" | "COMMIT_KIND_AUTOMATIC";
  /** Labels to set on the snapshot. */
  labels?: string[];
  /** The message of the snapshot. */
  message?: string;
  /** Further small values to store with the snapshot. */
  metadata?: Record<string, string>;
  /** `workspaces/{workspace}`. */
  name?: string;
  /** A note about the snapshot. */
  note?: string;
  /** Makes a retry return the first result: see docs/API.md. */
  requestId?: string;
  /** The reward of the snapshot. */
  reward?: number;
  /** Return the paths that differ from the head before, at most 10,000. */
  withChanges?: boolean;
}

export interface CommitWorkspaceResponse {
  /** False if there was nothing to commit. */
  changed?: boolean;
  /** The paths that differ from the head before, if asked for. */
  changes?: FileChange[];
  /** Whether the head had moved, so that the changes were merged with it. */
  merged?: boolean;
  /** The head afterwards; absent for a workspace without a snapshot and without changes. */
  snapshot?: Snapshot | null;
}

export interface CompareStepsResponse {
  /** The steps behind the common one up to the second step. */
  after?: Step[];
  /** The steps behind the common one up to the first step. */
  before?: Step[];
  /** The last common step; absent if they have different roots. */
  common?: Step | null;
  /** The reward of the second step minus that of the first, if both have one. */
  rewardDifference?: number;
  /** The counts of the change from the first tree to the second. */
  summary?: ChangeSummary | null;
}

export interface CompleteWorkspaceRequest {
  requestId?: string;
  submission?: Submission | null;
}

export interface CompleteWorkspaceResponse {
  /** Whether the workspace was taken away. */
  ended?: boolean;
  entry?: QueueEntry | null;
  merge?: Merge | null;
}

/** Versions of a path that could not be merged. */
export interface Conflict {
  /** What it is about, where that is not the path: `owner`, the name of an extended attribute, the key of a state value. */
  about?: string;
  /** By what the same conflict is known again, in hex; of one that is not in the tree, the snapshot of the merge that left it, a dash and a number. */
  id?: string;
  /** What sort it is, in words: `contents`, `both added`, `changed and removed`, `directories`, `symlinks`, `different kinds`; of one that is not in the tree, `moved twice`, `moved and removed`, `attribute`, `state value`. */
  kind?: string;
  path?: string;
  /** How many regions its file with markers has; 0 where it is shown by a version instead. */
  regions?: number;
  /** Whether a resolution of the same conflict is remembered. */
  remembered?: boolean;
  /** No entry of the tree is this conflict: it is about where a thing lies, an attribute or a state value. The tree holds all of it, or ours, and the record of the merge what theirs is. */
  undecided?: boolean;
  /** Added and removed in turn. */
  versions?: ConflictVersion[];
}

/** One of the versions. */
export interface ConflictVersion {
  /** Absent where this version has nothing at the path. Of a thing that was moved, with the path at which this version has it. */
  entry?: Entry | null;
  /** `ours`, `base`, `theirs`, `draft`; `side-2`, `base-2` and so on where there are more. */
  name?: string;
  /** The value of an attribute or of a state value; absent where this version has none. */
  value?: string;
  /** The workspace whose version it is, as far as the records of merges tell. */
  workspace?: string;
}

/** CPU of a sandbox. */
export interface CpuStats {
  limit?: string;
  /** 100 is one CPU. */
  usage?: number;
}

export interface CreateKeyRequest {
  /** The actor of the operations that this key makes. */
  agent?: string;
  /** When it stops working; missing for never. */
  expireTime?: string | null;
  /** See `Key.projects`. */
  projects?: string[];
  /** See `Key.scopes`; at least one. */
  scopes?: string[];
}

export interface CreateKeyResponse {
  /** The key. */
  key?: Key | null;
  /** The text that callers send. It cannot be shown again. */
  text?: string;
}

export interface CreateProjectRequest {
  /** The name without `projects/`: 1 to 63 of `a-z`, `0-9` and `-`; it begins with a letter and does not end with a dash. */
  projectId?: string;
  /** Check the request and change nothing. */
  validateOnly?: boolean;
}

export interface CreateProjectResponse {
  /** The new project. */
  project?: Project | null;
}

export interface CreateSandboxRequest {
  /** Hosts that the sandbox may reach, by a proxy of the server that the environment of its commands names, and by nothing else: `pypi.org`, `*.example.org` (all names below it), each with `:PORT`, or without for the ports 80 and 443. 64 at most, with `network` `none`. The setting `sandbox-hosts` of the server has to permit them. */
  allowedHosts?: string[];
  bestEffort?: boolean;
  /** Environment variables of all its commands. */
  envs?: Record<string, string>;
  /** A snapshot or workspace whose contents a new workspace gets. Without `workspace` and `from` the new workspace is empty. */
  from?: string;
  /** A snapshot or workspace whose contents the home gets. Without it the home is the one that an earlier sandbox left with `workspace`, or empty. */
  homeFrom?: string;
  /** Notes about the sandbox, which the answers of other calls repeat: 64 at most, with 16 KiB together. */
  metadata?: Record<string, string>;
  /** A name, for people. */
  name?: string;
  /** `none` (also if empty); `bridge` (docker) or `host` (local) where the server allows it. */
  network?: string;
  /** Show the workspace for reading only. */
  readOnly?: boolean;
  /** A limit that is given here and that nothing enforces fails the call, unless `best_effort` is set. */
  resources?: ResourceConfig | null;
  /** `local` or `docker`; if empty, the first one of the server that has the template. */
  runtime?: string;
  /** What to start it from: `host`, the name of a label below `templates/`, `snapshot:` and a snapshot as people write it, or the name of a Docker image. The files of a snapshot are the root directory of the sandbox, read-only. */
  template?: string;
  /** It is ended after so long; 0 is 3,600, at most 86,400. */
  timeoutSeconds?: number;
  /** An existing workspace to work in. */
  workspace?: string;
}

export interface CreateSymlinkRequest {
  /** Make the directories above it that are missing. */
  createParents?: boolean;
  /** The path. */
  path?: string;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** Where it points, escaped like a path; any text, also one that leads out of the tree. */
  target?: string;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

export interface CreateSymlinkResponse {
  /** The symlink. */
  file?: FileStat | null;
}

export interface CreateTerminalRequest {
  /** Arguments of the shell. */
  args?: string[];
  cols?: number;
  /** `/workspace` if empty. */
  cwd?: string;
  envs?: Record<string, string>;
  rows?: number;
  sandboxId?: string;
  /** Secrets of the shell. Each is a file in memory, whose path is in the variable `{NAME}_FILE`; it is removed when the shell ends. */
  secrets?: Record<string, string>;
  /** `/bin/bash` if empty, or `/bin/sh` where there is none. */
  shell?: string;
}

export interface CreateTerminalResponse {
  /** `pty-...`. */
  id?: string;
  /** A WebSocket of the terminal, with a ticket that is good for one connection within a minute. Later connections send the key in the header, to the same address without the ticket. */
  websocketUrl?: string;
}

export interface CreateWebhookRequest {
  /** Only events of these kinds, as in `workspace.committed` or `label.*`; empty for all. */
  kinds?: string[];
  /** The project whose events are sent; empty for that of the header `amalgam-project`, else `default`. */
  project?: string;
  /** The secret that signs deliveries; empty for a new one. `whsec_` and base64, or any text of 16 to 128 visible ASCII characters. */
  secret?: string;
  /** The address, http or https, without user and password. One that leads to a private network is refused when an event is sent, unless the server allows that network. */
  url?: string;
  /** Checks the request, and creates nothing. */
  validateOnly?: boolean;
  /** Only events of these workspaces, `workspaces/{workspace}`; a name that ends with `*` means all that begin so; empty for all. */
  workspaces?: string[];
}

export interface CreateWebhookResponse {
  /** The secret, which is not shown again. */
  secret?: string;
  /** The webhook; absent if the request was only checked. */
  webhook?: Webhook | null;
}

export interface CreateWorkspaceRequest {
  agent?: string;
  /** The snapshot it begins at, as people write it; empty for an empty tree. */
  from?: string;
  project?: string;
  requestId?: string;
  /** Without `workspaces/`. */
  workspaceId?: string;
}

export interface CreateWorkspaceResponse {
  workspace?: Workspace | null;
}

export interface DeleteLabelResponse {}

export interface DeleteProjectResponse {
  /** The project, with the time of its deletion. */
  project?: Project | null;
}

export interface DeleteSandboxResponse {}

export interface DeleteStateResponse {}

export interface DeleteWebhookResponse {
  /** The webhook that was deleted. */
  webhook?: Webhook | null;
}

export interface DeleteWorkspaceResponse {
  operation?: Operation | null;
}

/** One event for one webhook. */
export interface Delivery {
  /** When it was tried last. */
  attemptTime?: string | null;
  /** How often it was tried. */
  attempts?: number;
  /** When it was queued. */
  createTime?: string | null;
  /** Why the last try failed; empty if it did not. */
  error?: string;
  /** The kind of the event. */
  kind?: string;
  /** When it is tried next, if it is pending. */
  nextTime?: string | null;
  /** The number of the delivery among those of its webhook. */
  number?: number;
  /** The position of the event; empty for a test. */
  position?: string;
  /** What became of it. */
  state?: "DELIVERY_STATE_UNSPECIFIED" | "DELIVERY_STATE_PENDING" | "DELIVERY_STATE_DELIVERED" | "DELIVERY_STATE_FAILED";
  /** The HTTP status of the last answer; 0 without one. */
  status?: number;
}

export interface DiffStatesResponse {
  changes?: Change[];
  /** With the last message: how many changes in `.git` were left out. */
  gitChanges?: number;
}

/** Makes a directory. */
export interface DirectoryEdit {
  /** Permission bits; unset for 0755. */
  mode?: number;
  /** Make missing directories above it, too, and accept one that exists. */
  parents?: boolean;
  /** The path. */
  path?: string;
}

/** Disk use of a sandbox. */
export interface DiskStats {
  /** 0 for none. */
  limit?: number;
  /** Bytes in its workspace and its home, beside the last snapshot of each. 0 with the provider `checkout`: nothing counts them. */
  usage?: number;
}

export interface DropEpisodeResponse {
  /** How many steps this call removed. */
  steps?: number;
}

export interface EditFileRequest {
  /** By a unified patch. */
  patch?: PatchEdit | null;
  /** By exact search and replace. */
  replace?: ReplaceEdit | null;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

export interface EditFileResponse {
  /** The file afterwards. */
  file?: FileStat | null;
  /** How many places were replaced, or how many hunks were applied. */
  replacements?: number;
}

/** A limit and what enforces it. */
export interface EnforcedLimit {
  /** `cgroup`, `rlimit`, `quota`, `kernel`, or `none`. */
  enforcedBy?: string;
  /** `cpu`, `memory`, `pids`, `disk`, or `landlock`: the kernel's second wall against writes. */
  limit?: string;
  /** For `landlock` the version of its interface, for example `ABI 7`, or why it is not used. */
  value?: string;
}

/** A name in a tree. */
export interface Entry {
  kind?: "ENTRY_KIND_UNSPECIFIED" | "ENTRY_KIND_FILE" | "ENTRY_KIND_DIRECTORY" | "ENTRY_KIND_SYMLINK" | "ENTRY_KIND_FIFO" | "ENTRY_KIND_SOCKET" | "ENTRY_KIND_CHAR_DEVICE" | "ENTRY_KIND_BLOCK_DEVICE" | "ENTRY_KIND_CONFLICT";
  /** Permission bits. */
  mode?: number;
  modifyTime?: string | null;
  /** The path from the root of the tree, names joined by slashes. Bytes, because names on disk are. */
  path?: string;
  /** Bytes of a file; length of a symlink's target. */
  size?: number;
  /** Where a symlink points. */
  symlinkTarget?: string;
}

/** An episode. */
export interface Episode {
  /** When it was begun. */
  createTime?: string | null;
  /** Further small values. */
  metadata?: Record<string, string>;
  /** `episodes/{episode}`. */
  name?: string;
  /** `open`, `kept` for a finished one, or `dropping`. */
  state?: string;
}

export interface ErrorBody {
  error?: {
    code?: 1000 | 1001 | 1002 | 1003 | 1004 | 2001 | 2002 | 2003 | 2004 | 2005 | 2006 | 2007 | 3000 | 3001 | 3002 | 3003 | 3004 | 3005 | 3006 | 3007 | 3008 | 4000 | 4001 | 4002 | 4100 | 4101 | 9000 | 9001 | 9002 | 9003 | 9004 | 9005 | 9006 | 9007 | 9008 | 9009 | 9010 | 9011;
    details?: Record<string, string>;
    /** What happened, and what to do */
    message?: string;
    name?: "UNAUTHORIZED" | "FORBIDDEN" | "KEY_EXPIRED" | "KEY_REVOKED" | "LOCAL_ONLY" | "SANDBOX_NOT_FOUND" | "TEMPLATE_NOT_FOUND" | "SANDBOX_LIMIT_EXCEEDED" | "LIMIT_NOT_ENFORCED" | "NOT_ISOLATED" | "SANDBOX_NOT_READY" | "PORT_UNREACHABLE" | "NOT_FOUND" | "ALREADY_EXISTS" | "MOVED" | "CONFLICT" | "GONE" | "NOT_POSSIBLE" | "REQUEST_ID_REUSED" | "OUT_OF_RANGE" | "DAMAGED" | "PROCESS_TIMEOUT" | "COMMAND_FAILED" | "COMMAND_NOT_FOUND" | "PTY_NOT_FOUND" | "PTY_LIMIT_EXCEEDED" | "INTERNAL_ERROR" | "RATE_LIMITED" | "INVALID_ARGUMENT" | "TOO_LARGE" | "UNAVAILABLE" | "NO_SPACE" | "DEADLINE_EXCEEDED" | "CANCELLED" | "UNIMPLEMENTED" | "METHOD_NOT_ALLOWED" | "TOO_MANY" | "UNSUPPORTED_MEDIA";
    requestId?: string;
  };
}

/** A change of state, for a subscriber. */
export interface Event {
  /** Who did it. */
  actor?: string;
  /** The agent whose act was refused. */
  agent?: string;
  /** What was refused, and by which rule. */
  detail?: string;
  /** What happened, as in `workspace.committed`. docs/SERVER.md lists all kinds. */
  kind?: string;
  /** The labels that moved, `labels/{label}`, at most 100. */
  labels?: string[];
  /** The operation with every reference that moved, if the request asked for it. */
  operation?: Operation | null;
  /** The paths that it is about: that of an overlap, or of a refused act. Without paths that are hidden from the subscriber. */
  paths?: string[];
  /** The position of the event. A stream that is opened after it continues with the next event. */
  position?: string;
  /** The head of the first of them afterwards, `snapshots/{hex}`; empty if it has none. */
  snapshot?: string;
  /** The id of the snapshot as 32 bytes, in a compact event; empty if the workspace has no head. */
  snapshotId?: string;
  /** When it was done. */
  time?: string | null;
  /** The workspaces that moved, `workspaces/{workspace}`, at most 100. */
  workspaces?: string[];
}

export interface ExplainPolicyResponse {
  /** What the agent may do: `read`, `add`, `change`, `remove`. */
  acts?: string[];
  /** The agent. */
  agent?: string;
  /** Whether there is a policy. */
  hasPolicy?: boolean;
  /** `none`, `R`, `RA`, `RW-` or `RW`. */
  level?: string;
  /** The line of the rule that decided; 0 for the policy's default, and if there is no policy. */
  line?: number;
  /** The path. */
  path?: string;
  /** The patterns of that rule. */
  patterns?: string[];
  /** Whether the agent may decide reviews and conflicts. */
  reviewer?: boolean;
}

export interface ExplainRulesRequest {
  binary?: boolean;
  path?: string;
  rules?: CallRules | null;
  /** The workspace that would be merged into, for the rules of its project; may be empty. */
  workspace?: string;
}

export interface ExplainRulesResponse {
  /** The groups that the path belongs to. */
  groups?: string[];
  line?: number;
  pattern?: string;
  /** The rule that decided. */
  source?: string;
  /** The rules that go before it and do not match, in the order in which they are looked at. */
  tried?: TriedRule[];
  way?: string;
  what?: string;
}

/** A workspace or a snapshot that NFS clients can mount. */
export interface Export {
  /** Addresses and networks (CIDR) that may mount it. */
  allow?: string[];
  /** The commands that mount it. */
  commands?: MountCommands | null;
  createTime?: string | null;
  /** The address that clients connect to. One that the allowed networks can reach, if the server listens at all addresses. */
  host?: string;
  /** Whether a client uses it, or did within the last minutes. */
  inUse?: boolean;
  /** What it shows. READ_WRITE is the live tree, even if clients cannot change it. */
  mode?: "MOUNT_MODE_UNSPECIFIED" | "MOUNT_MODE_READ_WRITE" | "MOUNT_MODE_SNAPSHOT" | "MOUNT_MODE_FOLLOW";
  /** The path that clients mount, with the secret component if there is one. */
  mountPath?: string;
  /** `exports/{export}`. */
  name?: string;
  /** The path that clients mount, without the secret component: `/PROJECT/WORKSPACE`, `/PROJECT/WORKSPACE@` for a workspace's head, `/PROJECT/WORKSPACE@LABEL` or `/PROJECT/@SNAPSHOT`. It stays when the workspace is renamed. */
  path?: string;
  /** The TCP port for NFS and MOUNT. */
  port?: number;
  /** Whether clients cannot change files. */
  readOnly?: boolean;
  /** The snapshot; empty for a workspace. */
  snapshot?: string;
  /** Whether the server believes the user ids that clients send. If not, every client acts as the user of the store. */
  trustsUsers?: boolean;
  /** The workspace; empty for a snapshot. */
  workspace?: string;
}

export interface ExportEpisodeResponse {
  /** The next bytes of the JSON lines. */
  data?: string;
}

export interface ExtendSandboxRequest {
  id?: string;
  /** 1 to 3,600. */
  seconds?: number;
}

/** A sandbox that was not deleted. */
export interface FailedDeletion {
  error?: string;
  id?: string;
}

/** A path that differs between two states. */
export interface FileChange {
  /** For a rename: where it was. */
  fromPath?: string;
  /** How it differs. */
  kind?: "CHANGE_KIND_UNSPECIFIED" | "CHANGE_KIND_ADDED" | "CHANGE_KIND_REMOVED" | "CHANGE_KIND_MODIFIED" | "CHANGE_KIND_KIND_CHANGED" | "CHANGE_KIND_METADATA" | "CHANGE_KIND_RENAMED";
  /** The path; for something removed, where it was. */
  path?: string;
}

/** One edit of many. */
export interface FileEdit {
  /** Makes a symlink. */
  createSymlink?: SymlinkEdit | null;
  /** Makes a directory. */
  makeDirectory?: DirectoryEdit | null;
  /** Applies a unified patch to a file. */
  patch?: PatchEdit | null;
  /** Removes an entry. */
  remove?: RemoveEdit | null;
  /** Renames an entry. */
  rename?: RenameEdit | null;
  /** Replaces text in a file. */
  replace?: ReplaceEdit | null;
  /** Sets attributes. */
  setAttributes?: AttributesEdit | null;
  /** Sets or removes a state value. */
  setState?: StateEdit | null;
  /** Writes a file. */
  write?: WriteEdit | null;
}

/** Why one path of a batch could not be read. */
export interface FileFailure {
  /** The reason in words. */
  message?: string;
  /** The reason, a word of docs/API.md. */
  reason?: string;
}

/** What a change to one file comes to. */
export interface FileInsight {
  binary?: boolean;
  bytesAfter?: number;
  bytesBefore?: number;
  change?: Change | null;
  language?: string;
  linesAdded?: number;
  linesRemoved?: number;
  risks?: Risk[];
  /** For a rename: how much is the same, in percent. */
  similarityPercent?: number;
}

/** A line that matches, or a binary file that does. */
export interface FileMatch {
  /** Whether the file is binary: then only the first match of it is reported. */
  binary?: boolean;
  /** From 1; 0 for a binary file. */
  line?: number;
  /** The path of the file. */
  path?: string;
  /** The line without its end, cut after 4,096 bytes, with U+FFFD for bytes that are not UTF-8; empty for a binary file. */
  text?: string;
}

/** The metadata of a path. */
export interface FileStat {
  /** Identifies the bytes of a file: files with equal bytes have equal ids. `empty` and `zeros` are those of files without bytes and of files of zeros. Empty for other kinds, and in lists for large files with uncommitted changes. */
  contentId?: string;
  /** Changes with every change of the entry. Empty where `content_id` is left out. */
  etag?: string;
  /** The group that owns it. */
  gid?: number;
  /** The kind of the entry. */
  kind?: "ENTRY_KIND_UNSPECIFIED" | "ENTRY_KIND_FILE" | "ENTRY_KIND_DIRECTORY" | "ENTRY_KIND_SYMLINK" | "ENTRY_KIND_FIFO" | "ENTRY_KIND_SOCKET" | "ENTRY_KIND_CHAR_DEVICE" | "ENTRY_KIND_BLOCK_DEVICE" | "ENTRY_KIND_CONFLICT";
  /** Equal for all names of one file that has several; empty otherwise. */
  linkGroup?: string;
  /** Where a symlink points, escaped like a path. */
  linkTarget?: string;
  /** How many names the file has. */
  links?: number;
  /** The media type that its name suggests, for example `text/markdown`; `application/octet-stream` for an unknown one. */
  mediaType?: string;
  /** Permission bits. */
  mode?: number;
  /** When its bytes changed last. */
  modifyTime?: string | null;
  /** The path, escaped as described above. */
  path?: string;
  /** Bytes of a file; length of a symlink's target. */
  size?: number;
  /** The user who owns it. */
  uid?: number;
  /** The names of its extended attributes, escaped like a path. Not in lists. */
  xattrs?: string[];
}

export interface FindPathsResponse {
  entry?: Entry | null;
  /** The snapshot in which it is gone; absent if one that the search began from has it. */
  removedIn?: Snapshot | null;
  /** The newest snapshot that has it. */
  snapshot?: Snapshot | null;
}

export interface FinishEpisodeRequest {
  /** `episodes/{episode}`. */
  name?: string;
  /** Makes a retry return the first result: see docs/API.md. */
  requestId?: string;
}

export interface FinishEpisodeResponse {
  /** The episode. */
  episode?: Episode | null;
}

export interface FollowSourceRequest {
  /** The path of a tar or zip archive, imported into the workspace `following/{workspace}/archive` whenever the file changes. */
  archive?: string;
  /** The path of a directory. It belongs to a workspace from then on: to the one that it has, or to `following/{workspace}/directory`. */
  directory?: string;
  /** Only checks the request. */
  dryRun?: boolean;
  /** The interval without a mode; 0 for 30 seconds. */
  everySeconds?: number;
  /** A branch of a git repository, imported into the workspace `following/{workspace}/git`. */
  git?: GitOrigin | null;
  /** `lazy` (every 30 to 60 seconds), `regular` (every 5 to 10 seconds) or `event` (as soon as the source has a new snapshot; only for a workspace). Empty for an interval. */
  mode?: string;
  requestId?: string;
  /** The objects below a prefix of an S3 bucket, imported into the workspace `following/{workspace}/s3`. Only objects whose ETag changed are read. */
  s3?: S3Origin | null;
  /** `workspaces/{workspace}`. */
  sourceWorkspace?: string;
  /** `workspaces/{workspace}`: the follower. */
  workspace?: string;
}

export interface FollowSourceResponse {
  /** The merge of the first update, if there was something new. */
  merge?: Merge | null;
  /** The first update; absent for a dry run and for a retry. */
  update?: FollowUpdate | null;
  workspace?: Workspace | null;
}

/** One update of a follower. */
export interface FollowUpdate {
  /** Files in conflict. */
  conflicts?: number;
  /** `updated`, `already` (nothing new), `conflicts` (updated, with conflicts in the files), `refused` (by the policy) or `failed`. */
  how?: string;
  /** Why it was refused or failed. */
  reason?: string;
  /** Files that the source changed and that stayed as they are: the follower had the change, or its own replaced it. */
  skipped?: number;
  /** The head of the source then, `snapshots/{hex}`. */
  sourceSnapshot?: string;
  /** Files that were updated. */
  synced?: number;
  time?: string | null;
  /** Files that the source changed since the last update: those that were synced, skipped, and in conflict. */
  total?: number;
}

/** The source that a workspace follows. */
export interface Following {
  /** The interval; 0 if an event updates it. */
  everySeconds?: number;
  /** The last update that did something or failed; absent before it. */
  last?: FollowUpdate | null;
  /** `lazy`, `regular`, `event` or `every`. */
  mode?: string;
  /** Where the source gets its files, as in `git:/srv/app.git#main`; empty if it is committed to. Only on the Unix socket. */
  origin?: string;
  /** The workspace whose snapshots are merged in, `workspaces/{workspace}`. */
  source?: string;
}

export interface ForgetResolutionsRequest {
  /** All of them. */
  all?: boolean;
  /** Only says which it would be. */
  dryRun?: boolean;
  /** By the conflicts' ids, or the beginnings of them. */
  ids?: string[];
  requestId?: string;
}

export interface ForgetResolutionsResponse {
  forgotten?: number;
  /** Those that are forgotten, as they were. */
  resolutions?: Resolution[];
}

export interface ForkSandboxRequest {
  /** The number of copies, 1 (also if 0) to 50. */
  count?: number;
  id?: string;
  /** A name for the copies. */
  name?: string;
}

export interface ForkSandboxResponse {
  /** The new sandboxes. */
  sandboxes?: Sandbox[];
}

export interface ForkWorkspaceRequest {
  /** Whose the new workspaces are; unset for the agent of the key or, with the scope `admin` and on the Unix socket, for whose `name` is. */
  agent?: string;
  /** The workspace to begin from. */
  name?: string;
  /** What they belong to; unset for what `name` belongs to. */
  project?: string;
  requestId?: string;
  /** The snapshot to begin at, as people write it; `@` is the head of `name`. Empty for the head with the uncommitted changes of the live tree, which become a snapshot. */
  revision?: string;
  /** The workspace that their changes are merged into, `workspaces/{workspace}`; empty for `name`. */
  target?: string;
  /** The new names, without `workspaces/`. */
  workspaceIds?: string[];
}

export interface ForkWorkspaceResponse {
  operation?: Operation | null;
  workspaces?: Workspace[];
}

export interface GetBestStepsResponse {
  /** The steps, best first; none if no step has a reward. */
  steps?: Step[];
}

export interface GetCallerResponse {
  /** The caller's key; missing on a server without keys. */
  key?: Key | null;
}

/** How things stand with collections. */
export interface GetCollectionResponse {
  /** The most that the store may take; 0 for no limit. */
  budgetBytes?: number;
  diskBytes?: number;
  /** The free space below which nothing is committed. */
  floorBytes?: number;
  freeBytes?: number;
  /** The last one that came to its end; absent if there was none. */
  last?: LastCollection | null;
  /** One comes by itself when the store takes more than this. */
  nextBytes?: number;
  /** From then on one comes by itself, as soon as nobody has called for a while. */
  nextTime?: string | null;
  paused?: boolean;
  /** Until when it is paused; absent for a pause without an end. */
  pausedUntil?: string | null;
  underWay?: boolean;
  /** What is short, in words. */
  warnings?: string[];
}

export interface GetEpisodeResponse {
  /** The episode. */
  episode?: Episode | null;
}

export interface GetOperationResponse {
  /** Set when there are more changes. */
  nextPageToken?: string;
  operation?: Operation | null;
}

export interface GetPatchResponse {
  data?: string;
  /** With the last message: how many changes in `.git` were left out. */
  gitChanges?: number;
  /** Comes last: what differs and a patch cannot say. */
  leftOut?: PatchOmission[];
}

export interface GetPolicyResponse {
  /** The operation that made it so. Its undo brings the policy before back. */
  operation?: Operation | null;
  /** The text; empty without a policy, which permits everything. */
  text?: string;
}

export interface GetProjectResponse {
  /** The project. */
  project?: Project | null;
}

export interface GetProjectUsageResponse {
  /** The size of all files of the project on the disk, in bytes. */
  diskBytes?: number;
  /** The number of operations in the log, including those that were trimmed. */
  operations?: number;
  /** The number of workspaces. */
  workspaces?: number;
}

export interface GetQueueEntryResponse {
  entry?: QueueEntry | null;
}

export interface GetRadarResponse {
  /** Workspaces that changed more paths than the radar remembers; the overlaps of the others are complete. */
  incomplete?: string[];
  nextPageToken?: string;
  /** By path. */
  overlaps?: Overlap[];
}

export interface GetRequestResponse {
  /** The method that was called; empty if nothing is known of the request. */
  method?: string;
  /** What it did, if it is done; absent for a call that records no operation. */
  operation?: Operation | null;
  /** What became of it. */
  state?: "REQUEST_STATE_UNSPECIFIED" | "REQUEST_STATE_DONE" | "REQUEST_STATE_RUNNING" | "REQUEST_STATE_NOT_DONE";
}

export interface GetReviewResponse {
  review?: Review | null;
}

export interface GetSandboxLogsResponse {
  logs?: string;
  /** There are more lines. */
  truncated?: boolean;
}

export interface GetSandboxStatsResponse {
  cpu?: CpuStats | null;
  disk?: DiskStats | null;
  memory?: MemoryStats | null;
  network?: NetworkStats | null;
  processes?: number;
  sandboxId?: string;
  /** When the agent measured. */
  updatedAt?: string | null;
}

export interface GetSnapshotResponse {
  snapshot?: Snapshot | null;
}

export interface GetStateResponse {
  /** The value. */
  value?: StateValue | null;
}

export interface GetStatusResponse {
  /** The snapshot that the live tree follows. Another one than the head if the head moved while the tree had changes: the next commit merges. */
  base?: string;
  /** The paths that differ between `base` and the live tree, at most 10,000. */
  changes?: FileChange[];
  /** `snapshots/{hex}`, the head; empty while nothing was committed. */
  head?: string;
  /** Whether state values differ. */
  stateChanged?: boolean;
  /** Whether more paths differ. */
  truncated?: boolean;
}

export interface GetStepPathResponse {
  /** The steps, from the root on. */
  steps?: Step[];
}

export interface GetSystemStatsResponse {
  /** The NFS server. */
  nfs?: NfsStats | null;
  /** The use of the machine. */
  resources?: SystemResources | null;
  /** The sandboxes of the projects that the caller's key may use. */
  sandboxes?: SandboxCounts | null;
  /** For how many seconds the server has run. */
  uptime?: number;
}

export interface GetTemplateResponse {
  template?: Template | null;
}

export interface GetWebhookResponse {
  /** The webhook. */
  webhook?: Webhook | null;
}

export interface GetWorkspacePathResponse {
  /** The exports of the workspace over NFS, those that clients can change first. */
  exports?: Export[];
  /** The command that mounts the first of the exports: `mount -t nfs ... HOST:PATH DIRECTORY`. Empty if it is not exported. */
  mount?: string;
  /** The path of the host, of a mount before that of a directory. Empty over the network. */
  path?: string;
  /** All paths of the host that show the workspace: mounts, then directories. Empty over the network. */
  paths?: string[];
}

export interface GetWorkspaceResponse {
  workspace?: Workspace | null;
}

/** A branch of a git repository of this machine. */
export interface GitOrigin {
  /** The path of the repository. */
  path?: string;
  /** The branch or tag; empty for HEAD. */
  reference?: string;
}

export interface GlobFilesResponse {
  /** Entries that match. */
  files?: FileStat[];
}

export interface GrepFilesResponse {
  /** Lines that match. */
  matches?: FileMatch[];
}

export interface InspectChangeResponse {
  files?: FileInsight[];
  /** With the last message: how many changes in `.git` were left out. */
  gitChanges?: number;
  /** Comes last. */
  summary?: ChangeSummary | null;
}

/** A key without its secret. */
export interface Key {
  /** The actor of the operations that this key makes. */
  agent?: string;
  /** When it was made. */
  createTime?: string | null;
  /** When it stops working; missing if it does not. */
  expireTime?: string | null;
  /** `keys/{id}`. */
  name?: string;
  /** The names of the projects that it may use, without `projects/`; empty for all. */
  projects?: string[];
  /** When it was revoked; missing if it was not. */
  revokeTime?: string | null;
  /** `read`, `write`, `merge`, `run`, `admin`; a scope includes those before it, except that `run` includes nothing. */
  scopes?: string[];
}

export interface KillCommandRequest {
  commandId?: string;
  sandboxId?: string;
  /** 15 (also if 0) or 9, for example. */
  signal?: number;
}

export interface KillCommandResponse {}

export interface KillTerminalResponse {}

/** A label on a snapshot. */
export interface Label {
  /** `labels/{label}`. */
  name?: string;
  snapshot?: string;
}

/** A collection that came to its end. */
export interface LastCollection {
  diskBytesAfter?: number;
  diskBytesBefore?: number;
  freed?: ObjectTally | null;
  thinned?: number;
  time?: string | null;
  /** Why it was done: `asked`, `growth`, `time`, `room`. */
  why?: string;
}

/** Lines, counted from 1. */
export interface LineRange {
  first?: number;
  /** The last line; one before the first for a place between two lines. */
  last?: number;
}

export interface ListCommandsResponse {
  commands?: SandboxCommand[];
}

export interface ListConflictsResponse {
  conflicts?: Conflict[];
  /** Empty on the last page. */
  nextPageToken?: string;
}

export interface ListDeliveriesResponse {
  /** The deliveries. */
  deliveries?: Delivery[];
  /** Empty on the last page. */
  nextPageToken?: string;
}

export interface ListEpisodesResponse {
  /** The episodes. */
  episodes?: Episode[];
  /** Empty on the last page. */
  nextPageToken?: string;
}

export interface ListFilesResponse {
  /** The entries, sorted by name within each directory. */
  files?: FileStat[];
  /** Empty on the last page. */
  nextPageToken?: string;
}

/** One snapshot. */
export interface ListGrowthResponse {
  snapshot?: SnapshotAccount | null;
}

export interface ListKeysResponse {
  /** The keys, in the order of their creation. */
  keys?: Key[];
  /** For the next page; empty on the last one. */
  nextPageToken?: string;
}

export interface ListLabelsResponse {
  labels?: Label[];
  nextPageToken?: string;
}

export interface ListOperationsResponse {
  nextPageToken?: string;
  operations?: Operation[];
}

export interface ListPolicyChangesResponse {
  /** The operations, newest first. */
  operations?: Operation[];
}

export interface ListProjectsResponse {
  /** Empty on the last page. */
  nextPageToken?: string;
  /** The projects of this page. */
  projects?: Project[];
}

export interface ListQueueResponse {
  entries?: QueueEntry[];
  /** For the next page; empty on the last one. */
  nextPageToken?: string;
  /** Entries that cannot be read, and what to do about them. They are left out above. Only on the first page, at most 1,000. */
  problems?: string[];
}

export interface ListResolutionsResponse {
  /** Empty on the last page. */
  nextPageToken?: string;
  resolutions?: Resolution[];
}

export interface ListReviewsResponse {
  /** For the next page; empty on the last one. */
  nextPageToken?: string;
  /** Reviews that cannot be read, and what to do about them. They are left out above. Only on the first page, at most 1,000. */
  problems?: string[];
  reviews?: Review[];
}

export interface ListSandboxesResponse {
  items?: Sandbox[];
  limit?: number;
  page?: number;
  /** The number on all pages. */
  total?: number;
}

export interface ListSnapshotsResponse {
  nextPageToken?: string;
  snapshots?: Snapshot[];
}

export interface ListStatesResponse {
  /** Empty on the last page. */
  nextPageToken?: string;
  /** The values. */
  values?: StateValue[];
}

export interface ListStepsResponse {
  /** Empty on the last page. */
  nextPageToken?: string;
  /** The steps. */
  steps?: Step[];
}

export interface ListTemplatesResponse {
  templates?: Template[];
}

export interface ListTombstonesResponse {
  nextPageToken?: string;
  tombstones?: Tombstone[];
}

export interface ListVersionsResponse {
  entry?: Entry | null;
  fromPath?: string;
  kind?: "CHANGE_KIND_UNSPECIFIED" | "CHANGE_KIND_ADDED" | "CHANGE_KIND_REMOVED" | "CHANGE_KIND_MODIFIED" | "CHANGE_KIND_KIND_CHANGED" | "CHANGE_KIND_METADATA" | "CHANGE_KIND_RENAMED";
  path?: string;
  snapshot?: Snapshot | null;
}

export interface ListWebhooksResponse {
  /** For the next page; empty on the last one. */
  nextPageToken?: string;
  /** The webhooks, in the order of their creation. */
  webhooks?: Webhook[];
}

export interface ListWorkspacesResponse {
  /** Empty on the last page. */
  nextPageToken?: string;
  workspaces?: Workspace[];
}

export interface MakeDirectoryRequest {
  /** Permission bits; unset for 0755. */
  mode?: number;
  /** Make missing directories above it, too, and accept one that exists. */
  parents?: boolean;
  /** The path. */
  path?: string;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

export interface MakeDirectoryResponse {
  /** The directory. */
  file?: FileStat | null;
}

/** A line that matches, or a binary file that does. */
export interface MatchedLine {
  binary?: boolean;
  /** From 1; 0 for a binary file. */
  line?: number;
  path?: string;
  /** Without its end; nothing for a binary file. Cut after 4,096 bytes. */
  text?: string;
}

export interface MeasureStoreResponse {
  /** All files of the store on the disk. */
  diskBytes?: number;
  /** Free bytes where it lies. */
  freeBytes?: number;
  /** For the next page of workspaces; empty on the last one. */
  nextPageToken?: string;
  /** By name. */
  workspaces?: WorkspaceUsage[];
}

/** Progress; then the store, workspaces and snapshots, as far as they were asked for. */
export interface MeasureUsageResponse {
  progress?: UsageProgress | null;
  snapshot?: SnapshotAccount | null;
  store?: StoreAccount | null;
  workspace?: WorkspaceAccount | null;
}

/** Memory of a sandbox. */
export interface MemoryStats {
  limit?: number;
  percent?: number;
  usage?: number;
}

/** What a merge came to. */
export interface Merge {
  /** Of a dry run: what directories hold that no snapshot has, and that would be captured first. */
  captures?: MergeCapture[];
  /** How many paths of the target changed. */
  changed?: number;
  conflicts?: MergedPath[];
  /** Files whose bytes both sides had changed. */
  files?: MergedPath[];
  /** The head of the target afterwards, or, of a dry run, before. */
  head?: Snapshot | null;
  how?: "MERGE_HOW_UNSPECIFIED" | "MERGE_HOW_ALREADY" | "MERGE_HOW_FORWARD" | "MERGE_HOW_MERGED" | "MERGE_HOW_REFUSED" | "MERGE_HOW_REPLAYED" | "MERGE_HOW_WAITING" | "MERGE_HOW_REVIEW";
  notices?: Notice[];
  /** Why it was not done, if it was not. */
  reason?: string;
  /** Changes that the policy refused. They stay in the source workspace. */
  refused?: RefusedChange[];
  removed?: number;
  /** What was in the target's directory and in no snapshot, captured before. */
  safety?: Snapshot | null;
  /** How far each source got. */
  sources?: MergeSource[];
  target?: string;
  /** Files of the target's directory that were written and removed. */
  written?: number;
}

/** Changes of a directory that are in no snapshot. */
export interface MergeCapture {
  added?: number;
  modified?: number;
  removed?: number;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

/** Two that conflict. */
export interface MergeClash {
  paths?: string[];
  /** Empty for the target, or for all that was merged before together. */
  workspace?: string;
}

/** A source of a merge. */
export interface MergeSource {
  /** With whom it conflicts, when it is left: workspaces, and nothing for the target. */
  clashes?: MergeClash[];
  /** Its place in the order of merging, from 1; 0 when it is left. */
  place?: number;
  workspace?: string;
}

export interface MergeWorkspacesRequest {
  /** Takes snapshots of the uncommitted changes of the sources first. A source with a directory of the host only on the Unix socket. */
  capture?: boolean;
  /** Only says what would come of it. */
  dryRun?: boolean;
  /** Moves the target's head, or does nothing. */
  fastForwardOnly?: boolean;
  message?: string;
  /** Leaves conflicts that were resolved before as conflicts. */
  noRemembered?: boolean;
  requestId?: string;
  rules?: CallRules | null;
  /** `workspaces/{workspace}`, one or more. */
  sources?: string[];
  target?: string;
}

export interface MergeWorkspacesResponse {
  merge?: Merge | null;
}

/** A file that both sides changed, or a path that could not be merged. */
export interface MergedPath {
  /** Other paths that have to do with it. */
  others?: string[];
  path?: string;
  /** The id of the remembered resolution that decided it; empty if none did. `ForgetResolutions` takes it. */
  remembered?: string;
  /** `merged`, `ours`, `theirs`, `conflict`; for a conflict, its kind. */
  result?: string;
  /** How it was decided. */
  way?: string;
}

/** Commands that mount an export. */
export interface MountCommands {
  /** The device of `mount -t nfs`: `HOST:PATH`. */
  device?: string;
  /** `docker volume create ...`. */
  docker?: string;
  /** A PersistentVolume of Kubernetes, as YAML. */
  kubernetes?: string;
  /** `mount -t nfs ...`, for root on a Linux client. */
  mount?: string;
  /** The options of `mount -t nfs`. */
  options?: string;
}

/** Network of a sandbox. */
export interface NetworkStats {
  rxBytes?: number;
  txBytes?: number;
}

export interface NextBisectStepRequest {
  /** One that is known to be broken. */
  bad?: string;
  /** Snapshots that are known to work. */
  good?: string[];
  /** Those that could not be told. */
  skipped?: string[];
  workspace?: string;
}

export interface NextBisectStepResponse {
  /** How many are left, the next one included. */
  candidates?: number;
  /** When it is over: the first broken one; several when those before could not be told. */
  firstBad?: Snapshot[];
  /** The one to try next; absent when the search is over. */
  next?: Snapshot | null;
}

/** The NFS server. */
export interface NfsStats {
  connections?: number;
  /** `embedded`. */
  mode?: string;
}

/** A path that was not dealt with as asked. */
export interface Notice {
  /** Whether the work is only partly done because of it. */
  failure?: boolean;
  kind?: "NOTICE_KIND_UNSPECIFIED" | "NOTICE_KIND_IGNORED" | "NOTICE_KIND_OURS" | "NOTICE_KIND_OTHER_FILE_SYSTEM" | "NOTICE_KIND_FAILED" | "NOTICE_KIND_CHANGING" | "NOTICE_KIND_CHANGED_SINCE" | "NOTICE_KIND_UNSUPPORTED" | "NOTICE_KIND_NOT_EMPTY" | "NOTICE_KIND_OWNER_NOT_SET" | "NOTICE_KIND_PURGED" | "NOTICE_KIND_CACHE_NOT_KEPT" | "NOTICE_KIND_WITHHELD" | "NOTICE_KIND_DAMAGED" | "NOTICE_KIND_GIT_FILE";
  /** The reason in words. */
  message?: string;
  path?: string;
}

/** Objects and the bytes that are kept for them. */
export interface ObjectTally {
  bytes?: number;
  objects?: number;
}

export interface OpenPortRequest {
  /** 1 to 65535. A program has to listen there, on the loopback address or on all addresses. */
  port?: number;
  sandboxId?: string;
  /** The URL is good for so long, and not longer than the sandbox, the key and the server's process; 0 is 3,600, at most 86,400. */
  timeoutSeconds?: number;
}

export interface OpenPortResponse {
  expiresAt?: string | null;
  /** What stands behind `http://` or `https://` in the URL, without the last slash. It has a path, unless the server has a domain for ports. */
  host?: string;
  /** The URL of the program's root, with a slash at its end. Whoever has it reaches the port. */
  url?: string;
}

/** A change of state. */
export interface Operation {
  /** What: commit, capture, fork, restore, undo, ... */
  action?: string;
  /** Who. */
  actor?: string;
  changes?: ReferenceChange[];
  /** How many changes follow that are left out of `changes`, because the message would be too large; `GetOperation` has them. */
  changesLeftOut?: number;
  /** `operations/{sequence}`. */
  name?: string;
  /** The operation that this one took back or did again; 0 for none. */
  reverts?: number;
  sequence?: number;
  time?: string | null;
}

/** A path that several workspaces changed. */
export interface Overlap {
  /** What pairs of them have in common, at most 10; with `workspace` in the request, the pairs of that workspace. */
  pairs?: OverlapPair[];
  /** The path from the root of the tree. */
  path?: string;
  /** The workspaces, the earliest first, at most 100. */
  sides?: OverlapSide[];
  /** When the second of them changed the path. */
  since?: string | null;
}

/** Two workspaces that changed the same file. */
export interface OverlapPair {
  /** The common keys as JSON pointers, at most 100. */
  keys?: string[];
  /** `file` (other parts of it, or no text), `lines` (the same lines), `keys` (the same keys of a JSON document) or `same` (both made the same change). */
  kind?: string;
  /** `workspaces/{workspace}`. */
  left?: string;
  /** The common lines, in the version from which both started. */
  lines?: LineRange[];
  /** Whether the file would merge now: `clean`, `conflict` or `unknown`. */
  merge?: string;
  right?: string;
}

/** A workspace that changed a path. */
export interface OverlapSide {
  agent?: string;
  /** When the radar first saw the change. */
  since?: string | null;
  /** Whether the change, or a part of it, is in no snapshot yet. */
  uncommitted?: boolean;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

/** Applies a unified patch of one file, as `diff -u` and `git diff` write it. The file is at most 16 MiB. */
export interface PatchEdit {
  /** Only if the file has this etag; STALE_FILE otherwise. */
  ifMatch?: string;
  /** The hunks, with or without the lines before the first one. A hunk is applied at its line, or at the nearest other place that has all its lines. If there is none, the edit fails with PATCH_FAILED; the detail `hunk` says which, from 1. */
  patch?: string;
  /** The path of the file. The names in the patch are not used. */
  path?: string;
}

/** Something that differs and is not in a patch. */
export interface PatchOmission {
  message?: string;
  path?: string;
}

/** A version of a path. */
export interface PathVersion {
  action?: string;
  author?: string;
  /** Empty where the path is not there. */
  content?: string;
  /** The operation that made it, its place in the log and its word; 0 when the log does not know it. */
  operation?: number;
  size?: number;
  /** The snapshot that brought it, and who made that. */
  snapshot?: string;
  time?: string | null;
  /** The workspace in which it was made, as far as the log of operations tells. */
  workspace?: string;
}

/** A pattern of paths and a way. */
export interface PathWay {
  path?: string;
  way?: string;
}

export interface PauseCollectionRequest {
  /** Paused from now on, or not. */
  paused?: boolean;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** For so long; absent for until it is resumed. */
  seconds?: number;
}

export interface PauseCollectionResponse {}

export interface PauseSandboxRequest {
  id?: string;
}

/** Some snapshots of a plan. */
export interface PlanCollectionResponse {
  snapshots?: PlannedSnapshot[];
}

/** A snapshot of a plan. */
export interface PlannedSnapshot {
  /** Whether nobody asked for it. */
  automatic?: boolean;
  fate?: "FATE_UNSPECIFIED" | "FATE_STAYS" | "FATE_SOON" | "FATE_GOES" | "FATE_GONE";
  /** From when on a collection takes it; absent if no time ends its stay. */
  goTime?: string | null;
  message?: string;
  snapshot?: string;
  time?: string | null;
  /** Why it stays. */
  why?: string;
  /** The workspace in whose history it is; empty for those that only labels and the like lead to. */
  workspace?: string;
}

/** An error in the text of a policy. */
export interface PolicyComplaint {
  /** The byte in the line, from 1. */
  column?: number;
  /** From 1. */
  line?: number;
  /** The problem and the allowed values. */
  message?: string;
}

/** How far a long piece of work is. Counts grow; a total of 0 is not known yet. */
export interface Progress {
  bytes?: number;
  bytesTotal?: number;
  files?: number;
  filesTotal?: number;
  names?: number;
  /** What is being done: `look`, `read`, `write`, `verify`, `send`, `receive`, `plan`, `purge`, `import`, `export`. */
  phase?: string;
}

/** A project. */
export interface Project {
  /** When it was made. */
  createTime?: string | null;
  /** When it was deleted; missing if it was not. */
  deleteTime?: string | null;
  /** `projects/{project}`. */
  name?: string;
}

export interface PublishWorkspaceRequest {
  requestId?: string;
  submission?: Submission | null;
}

export interface PublishWorkspaceResponse {
  entry?: QueueEntry | null;
  merge?: Merge | null;
}

/** How a workspace is published by itself. */
export interface Publishing {
  /** 0 without an interval. */
  everySeconds?: number;
  /** What came of it: `merged`, `already`, `review`, `failed`. */
  lastHow?: string;
  /** When that was last done. */
  lastTime?: string | null;
  onCommit?: boolean;
  /** Whether it is published after its files have changed and then been quiet for a while. */
  onWrite?: boolean;
  /** For how long; 0 without `on_write`. */
  quietMilliseconds?: number;
  /** Why it was not merged, if it was not. */
  reason?: string;
  /** What waits for a person, `reviews/{entry}`. Nothing more is published meanwhile. */
  review?: string;
  /** What it is published into. */
  target?: string;
}

/** A merge that waits. */
export interface QueueEntry {
  actor?: string;
  agent?: string;
  /** Whether the workspace ends when it has landed. */
  ends?: boolean;
  /** Taken back by an undo: it is not merged by itself again. */
  held?: boolean;
  message?: string;
  /** `queue/{entry}`, or `reviews/{entry}`. */
  name?: string;
  /** What is to be merged. */
  snapshot?: string;
  target?: string;
  test?: string[];
  time?: string | null;
  workspace?: string;
}

export interface ReadConflictRequest {
  path?: string;
  state?: State | null;
  /** The name of a version, or of the workspace whose it is; empty for what is shown in a directory: the file with markers, or a version. */
  version?: string;
  workspace?: string;
}

export interface ReadConflictResponse {
  /** In the first message. */
  conflict?: Conflict | null;
  data?: string;
}

/** A file of a batch. */
export interface ReadContents {
  /** The bytes, from the first one on. */
  data?: string;
  /** The metadata. */
  file?: FileStat | null;
  /** Whether the file has more bytes than these. */
  truncated?: boolean;
}

export interface ReadFilesRequest {
  /** The most bytes of each file; 0 for 1 MiB. All files of one call together are at most 16 MiB. */
  bytesMax?: number;
  /** The paths; at most 1,000. */
  paths?: string[];
  /** A snapshot as people write it; empty for the live tree. */
  revision?: string;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

export interface ReadFilesResponse {
  /** One for each path, in the order of the request. */
  results?: ReadResult[];
}

/** One file of a batch, or why there is none. */
export interface ReadResult {
  /** The file. */
  contents?: ReadContents | null;
  /** Why there is none. */
  failure?: FileFailure | null;
  /** The path as it was asked for. */
  path?: string;
}

export interface RecordStepRequest {
  /** Return before the step is on disk: it survives a crash of the process, not a power cut. */
  buffered?: boolean;
  /** Edits on that snapshot; the result is committed as the state of the step. None to record the snapshot itself. */
  edits?: FileEdit[];
  /** The message of the snapshot that edits make. */
  message?: string;
  /** Further small values to store with it. */
  metadata?: Record<string, string>;
  /** `episodes/{episode}`. */
  name?: string;
  /** The number of the step before it; 0 for a root. */
  parent?: number;
  /** Makes a retry return the first result: see docs/API.md. */
  requestId?: string;
  /** The snapshot of the step, or that the edits are made on, as people write it. Empty for the state of the parent step. */
  revision?: string;
  /** The reward of its state. */
  reward?: number;
  /** The sum of the rewards of these visits. */
  total?: number;
  /** How often a search visited it. */
  visits?: number;
  /** The workspace that `@` in the revision stands for. */
  workspace?: string;
}

export interface RecordStepResponse {
  /** The step. */
  step?: Step | null;
}

export interface RedoOperationRequest {
  operation?: string;
  requestId?: string;
  workspace?: string;
}

export interface RedoOperationResponse {
  /** What was redone, in words. */
  description?: string;
  operation?: Operation | null;
}

/** What an operation did to one name. */
export interface ReferenceChange {
  after?: string;
  /** `snapshots/{hex}`; empty for nothing. */
  before?: string;
  /** `workspace/main`, `label/v1`, ... */
  reference?: string;
}

/** A change that the policy does not permit to the agent of a workspace. */
export interface RefusedChange {
  /** The agent. */
  agent?: string;
  path?: string;
  /** The act, the rule and the level. */
  why?: string;
}

export interface RejectReviewRequest {
  /** Only says whose it is. */
  dryRun?: boolean;
  name?: string;
  requestId?: string;
}

export interface RejectReviewResponse {
  workspace?: Workspace | null;
}

export interface ReleaseEpisodeRequest {
  /** `episodes/{episode}`. */
  name?: string;
  /** Makes a retry return the first result: see docs/API.md. */
  requestId?: string;
}

export interface ReleaseEpisodeResponse {
  /** The episode. */
  episode?: Episode | null;
}

export interface ReleaseQueueEntryRequest {
  /** Only says what would come of it. The test is not run, and what waits in the queue before it is not looked at. */
  dryRun?: boolean;
  name?: string;
  requestId?: string;
}

export interface ReleaseQueueEntryResponse {
  merge?: Merge | null;
}

/** Removes an entry. */
export interface RemoveEdit {
  /** Accept that there is nothing at this path. */
  allowMissing?: boolean;
  /** Only if the entry has this etag; STALE_FILE otherwise. */
  ifMatch?: string;
  /** The path. */
  path?: string;
  /** Remove a directory with everything in it. */
  recursive?: boolean;
}

export interface RemoveFileRequest {
  /** Accept that there is nothing at this path. */
  allowMissing?: boolean;
  /** Only if the entry has this etag; STALE_FILE otherwise. */
  ifMatch?: string;
  /** The path. */
  path?: string;
  /** Remove a directory with everything in it. Without it only an empty directory is removed. */
  recursive?: boolean;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

export interface RemoveFileResponse {}

/** Renames an entry. */
export interface RenameEdit {
  /** Make the directories above the new path that are missing. */
  createParents?: boolean;
  /** Only if the entry has this etag; STALE_FILE otherwise. */
  ifMatch?: string;
  /** The new path. */
  newPath?: string;
  /** Fail with ALREADY_EXISTS if there is something at the new path. */
  noReplace?: boolean;
  /** The present path. */
  path?: string;
}

export interface RenameFileRequest {
  /** Make the directories above the new path that are missing. */
  createParents?: boolean;
  /** Only if the entry has this etag; STALE_FILE otherwise. */
  ifMatch?: string;
  /** The new path. */
  newPath?: string;
  /** Fail with ALREADY_EXISTS if there is something at the new path. Without it a file replaces a file, and a directory an empty one. */
  noReplace?: boolean;
  /** The present path. */
  path?: string;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

export interface RenameFileResponse {
  /** The entry at its new path. */
  file?: FileStat | null;
}

export interface RenameWorkspaceRequest {
  /** If set, it must be the workspace's. */
  etag?: string;
  name?: string;
  newWorkspaceId?: string;
  requestId?: string;
}

export interface RenameWorkspaceResponse {
  workspace?: Workspace | null;
}

/** Replaces text in a file by exact search. The file is at most 16 MiB. */
export interface ReplaceEdit {
  /** Only if the file has this etag; STALE_FILE otherwise. */
  ifMatch?: string;
  /** The text to put there. */
  newText?: string;
  /** The text to replace. If the file has it not exactly once, the edit fails with NOT_UNIQUE; the detail `count` says how often. */
  oldText?: string;
  /** The path of the file. */
  path?: string;
  /** Replace all places instead; at least one. */
  replaceAll?: boolean;
}

export interface ReplayDeliveryRequest {
  /** `webhooks/{webhook}`. */
  name?: string;
  /** The number of the delivery. */
  number?: number;
}

export interface ReplayDeliveryResponse {
  /** The queued delivery. */
  delivery?: Delivery | null;
}

export interface ResizeTerminalRequest {
  cols?: number;
  ptyId?: string;
  rows?: number;
  sandboxId?: string;
}

export interface ResizeTerminalResponse {}

/** A resolution that is remembered. */
export interface Resolution {
  /** What it became; absent if that was to be gone. */
  entry?: Entry | null;
  /** The conflict's, in hex. */
  id?: string;
  /** Where the conflict was when it was resolved. */
  path?: string;
}

export interface ResolveConflictsRequest {
  /** These bytes, for one path. */
  content?: string;
  /** Say what would be done, and change nothing. */
  dryRun?: boolean;
  /** Do not remember it. */
  forget?: boolean;
  /** These conflicts, or all below these paths. None at all is an error. */
  paths?: string[];
  /** Whatever is remembered; the others stay. */
  remembered?: boolean;
  requestId?: string;
  /** The name of a version, or of the workspace whose it is, or `union` for the lines of all sides. */
  version?: string;
  /** The workspace. Where it has a directory, that is brought along, and what is in no snapshot there is captured first. */
  workspace?: string;
}

export interface ResolveConflictsResponse {
  /** How many paths with conflicts are left. */
  left?: number;
  notices?: Notice[];
  /** Those that are resolved, as they were. */
  resolved?: Conflict[];
  /** The snapshot that holds what was in the directory before; absent when the head held it already. */
  safety?: Snapshot | null;
  /** The head afterwards. */
  snapshot?: Snapshot | null;
}

/** The limits of a sandbox. */
export interface ResourceConfig {
  /** CPUs: `2` (also if empty), `0.5`. */
  cpu?: string;
  /** The bytes that the workspace may hold beside its last snapshot, and those of the home: `10g` each (also if empty). */
  disk?: string;
  /** Memory: `2g` (also if empty), `512m`. */
  memory?: string;
  /** Processes and threads; 0 is 1,024. */
  pids?: number;
}

export interface RestoreWorkspaceRequest {
  /** Only says which paths would change, compared with the head. */
  dryRun?: boolean;
  /** If set, it must be the workspace's. */
  etag?: string;
  name?: string;
  /** Only these paths and what is below them; empty for all. */
  paths?: string[];
  requestId?: string;
  /** The snapshot, as people write it. */
  revision?: string;
}

export interface RestoreWorkspaceResponse {
  /** False when the tree was that already. */
  changed?: boolean;
  /** With `dry_run`: the paths of the head that would change, at most 10,000. */
  changes?: FileChange[];
  workspace?: Workspace | null;
}

export interface ResumeSandboxRequest {
  id?: string;
  /** It is ended after so long; 0 is 3,600, at most 86,400. */
  timeoutSeconds?: number;
}

/** A merge that waits for a person. */
export interface Review {
  /** The common ancestors. */
  bases?: string[];
  conflicts?: MergedPath[];
  entry?: QueueEntry | null;
  /** The target's head when it was tried. */
  ours?: string;
  /** Why it waits, beside its conflicts: a test that failed, a refusal. */
  reason?: string;
  /** Who made each version, in the order of the conflicts. Only of a single one. */
  versions?: ReviewVersions[];
}

/** Who made the versions of a path. */
export interface ReviewVersions {
  base?: PathVersion | null;
  ours?: PathVersion | null;
  path?: string;
  /** What it would look like in the target: a text with markers. Empty where it is no text, or longer than 256 KiB. */
  shown?: string;
  theirs?: PathVersion | null;
}

export interface RevokeKeyResponse {
  /** The key, with the time of its revocation. */
  key?: Key | null;
}

/** Something worth a second look. */
export interface Risk {
  /** A stable word: secret, executable, ... */
  kind?: string;
  /** Words for a person. */
  message?: string;
  weight?: number;
}

/** Something that is wrong with rules. */
export interface RuleComplaint {
  column?: number;
  line?: number;
  message?: string;
}

export interface RunCommandRequest {
  /** For `/bin/sh -c`. */
  command?: string;
  /** `/workspace` if empty. */
  cwd?: string;
  envs?: Record<string, string>;
  /** Bytes of output that are returned; 0 is 1 MiB, at most 4 MiB. The command may write more. */
  maxOutputSize?: number;
  sandboxId?: string;
  /** Secrets of this command. Each is a file in memory, whose path is in the variable `{NAME}_FILE`; it is removed when the command ends. Secrets are in no log, no snapshot and no list of processes. */
  secrets?: Record<string, string>;
  /** Standard input. */
  stdin?: string;
  /** Over REST a stream is asked for by `Accept: text/event-stream`; the call of a stream is StreamCommand. */
  stream?: boolean;
  /** In milliseconds. The command and everything that it started are killed then. Without it the call ends after 60,000 with PROCESS_TIMEOUT, and the command goes on. */
  timeout?: number;
}

export interface RunCommandResponse {
  commandId?: string;
  /** 128 and the signal's number if a signal ended the command. */
  exitCode?: number;
  stderr?: string;
  /** Bytes that are not UTF-8 are replaced. */
  stdout?: string;
  /** There was more output. */
  truncated?: boolean;
}

export interface RunOnForkRequest {
  /** Put output into `output`, as it is, instead of into `data`. */
  binary?: boolean;
  /** For `/bin/sh -c`. */
  command?: string;
  /** `/workspace` if empty. */
  cwd?: string;
  /** Environment variables of the command. */
  envs?: Record<string, string>;
  /** The workspace to fork and to merge into, `workspaces/{workspace}`. */
  from?: string;
  /** Keep the fork if it is not merged. */
  keep?: boolean;
  /** The message of the merge; empty for the command. */
  message?: string;
  /** Do not merge. */
  noMerge?: boolean;
  /** What happens if the policy refuses some of the changes, as in Submission. */
  onRefused?: string;
  /** The sandbox, as in CreateSandboxRequest. `workspace`, `from` and `read_only` must not be set; missing for one from `host`. */
  sandbox?: CreateSandboxRequest | null;
  /** Secrets of the command, as in RunCommandRequest. */
  secrets?: Record<string, string>;
  /** Standard input. */
  stdin?: string;
  /** In milliseconds. The command and everything that it started are killed then, and nothing is merged. */
  timeout?: number;
}

/** Stages and output; the result comes last. */
export interface RunOnForkResponse {
  /** The command has started, wrote something, or has ended. */
  output?: StreamCommandResponse | null;
  result?: RunOnForkResult | null;
  /** A stage begins. */
  stage?: RunStage | null;
}

/** What came of RunOnFork. */
export interface RunOnForkResult {
  /** What the command changed, at most 1,000 paths. */
  changes?: Change[];
  /** How many more there are. */
  changesMore?: number;
  /** Of the command. */
  exitCode?: number;
  /** The fork still exists. */
  kept?: boolean;
  /** The merge; missing if there was none. */
  merge?: Merge | null;
  /** The changes are in the workspace that was forked. */
  merged?: boolean;
  /** Its head after the command, `snapshots/{hex}`. */
  snapshot?: string;
  /** The command was killed because its time was up. */
  timedOut?: boolean;
  /** The fork. */
  workspace?: string;
}

/** A stage of RunOnFork. */
export interface RunStage {
  /** The sandbox, once there is one. */
  sandboxId?: string;
  /** `update`, `fork`, `sandbox`, `run`, `end`, `detect`, `merge` or `clean`. */
  stage?: string;
  /** The fork, `workspaces/{workspace}`, once there is one. */
  workspace?: string;
}

/** The objects below a prefix of an S3 bucket. A key behind the prefix is a path; `..`, `.` and nothing between slashes make it none. */
export interface S3Origin {
  /** The path of a file with credentials, in the form of ~/.aws/credentials; empty for those of the environment of the process, or that file itself. */
  credentials?: string;
  /** The URL of the store; empty for AWS_ENDPOINT_URL of the process, or AWS. */
  endpoint?: string;
  /** The region; empty for AWS_REGION of the process, or that of the file with the credentials. */
  region?: string;
  /** `s3://BUCKET[/PREFIX]`. */
  url?: string;
}

/** A sandbox. */
export interface Sandbox {
  /** The hosts that it may reach, by the proxy of the server. */
  allowedHosts?: string[];
  createdAt?: string | null;
  /** When it is ended, and its workspace committed and kept. */
  expiresAt?: string | null;
  /** What a fork of the running sandbox costs, in words. It depends on `provider`. */
  forkCost?: string;
  /** The hidden workspace with its home and its `/tmp`, `workspaces/.homes/{workspace}`. It forks with the sandbox. */
  home?: string;
  /** `sbx-...`. */
  id?: string;
  /** What enforces each limit. */
  limits?: EnforcedLimit[];
  /** What its creator noted about it. */
  metadata?: Record<string, string>;
  name?: string;
  /** `none`, `bridge` or `host`. */
  network?: string;
  /** The workspace was made for the sandbox, and is deleted with it. */
  ownsWorkspace?: boolean;
  /** Its project. */
  project?: string;
  /** How the sandbox sees its workspace and its home: `fuse` for mounts, `checkout` for directories with all files. */
  provider?: string;
  readOnly?: boolean;
  /** Why the sandbox is in the state `error` or `stopped`. */
  reason?: string;
  /** `local` or `docker`. */
  runtime?: string;
  /** `starting`, `running`, `stopping`, `stopped` or `error`. */
  state?: string;
  template?: string;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

/** A command of a sandbox. */
export interface SandboxCommand {
  command?: string;
  commandId?: string;
  exitCode?: number;
  /** Bytes of output so far. */
  outputBytes?: number;
  running?: boolean;
  startedAt?: string | null;
}

/** Sandboxes by state. */
export interface SandboxCounts {
  error?: number;
  /** Also those that are starting or stopping. */
  running?: number;
  stopped?: number;
  total?: number;
}

/** Something that happened to a sandbox. */
export interface SandboxEvent {
  /** Who created it. */
  actor?: string;
  /** `sandbox.starting`, `sandbox.running`, `sandbox.created`, `sandbox.expiring`, `sandbox.expired`, `sandbox.deleted`, `sandbox.error`, `agent.connected` or `agent.disconnected`. */
  kind?: string;
  /** The position of the event. */
  position?: string;
  /** The sandbox as it was then. Its limits are left out. */
  sandbox?: Sandbox | null;
  time?: string | null;
}

export interface SchedulePublishingRequest {
  /** 0 without an interval. */
  everySeconds?: number;
  /** After each commit. Without this, `on_write` and an interval nothing is published by itself. */
  onCommit?: boolean;
  /** After the files of the workspace have changed, in its directory, a mount or by calls, and then been quiet for a while. What was written is captured first. Commits count, too. A workspace with a directory of the host only on the Unix socket. */
  onWrite?: boolean;
  /** For how long nothing must change before that; 0 for 2,000, at most an hour. */
  quietMilliseconds?: number;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** What is put into the queue each time. `detach` plays no part; a directory is captured where there is an interval. With `dry_run` only says how the workspace would be published from then on. */
  submission?: Submission | null;
}

export interface SchedulePublishingResponse {
  workspace?: Workspace | null;
}

export interface SearchFilesResponse {
  matches?: MatchedLine[];
}

export interface SetAttributesRequest {
  /** The attributes, and of which path. */
  attributes?: AttributesEdit | null;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

export interface SetAttributesResponse {
  /** The entry afterwards. */
  file?: FileStat | null;
}

export interface SetLabelRequest {
  /** If set, the snapshot that the label must be on now, or an empty text if there must be no such label. Otherwise the call fails with STALE_HEAD. */
  expectedSnapshot?: string;
  /** Without `labels/`. */
  labelId?: string;
  requestId?: string;
  revision?: string;
  /** The workspace that `@` stands for. If set, an undo in it takes the label back. */
  workspace?: string;
}

export interface SetLabelResponse {
  label?: Label | null;
}

export interface SetPolicyRequest {
  /** Only says what would come of it. */
  dryRun?: boolean;
  requestId?: string;
  /** The text; empty to remove the policy. */
  text?: string;
}

export interface SetPolicyResponse {
  /** Whether the policy differs from the one before. */
  changed?: boolean;
  /** The operation; nothing for a dry run, and if nothing changed. */
  operation?: Operation | null;
  /** What the policy cannot prevent. */
  warnings?: string[];
}

export interface SetSandboxTimeoutRequest {
  id?: string;
  /** 0 to 86,400; 0 ends it now. */
  seconds?: number;
}

export interface SetStateRequest {
  /** Only if there is no value; ALREADY_EXISTS otherwise. */
  ifAbsent?: boolean;
  /** Only if the value has this etag, or exists at all for `*`; STALE_FILE otherwise. */
  ifMatch?: string;
  /** The value as JSON text. */
  json?: string;
  /** The key. */
  key?: string;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

export interface SetStateResponse {
  /** The value. */
  value?: StateValue | null;
}

/** A tree at one moment. */
export interface Snapshot {
  author?: string;
  /** How many conflicts its tree has, as far as whoever made it counted. */
  conflicts?: number;
  /** The labels on it. */
  labels?: string[];
  message?: string;
  metadata?: Record<string, string>;
  /** `snapshots/{hex}`. */
  name?: string;
  /** What was noted about it, and its reward. */
  note?: string;
  parents?: string[];
  reward?: number;
  /** Its tree was dropped by retention; its record is still there. */
  thinned?: boolean;
  time?: string | null;
  /** The id of its tree, in hex: equal trees have equal ids. */
  tree?: string;
  /** What is left of its tree lacks what was in caches: directories with a CACHEDIR.TAG. */
  withoutCaches?: boolean;
  /** The workspaces whose head it is. */
  workspaces?: string[];
}

/** What a snapshot takes. */
export interface SnapshotAccount {
  /** Its record, and what of its tree none of its parents has. Absent if its tree was dropped on thinning. */
  growth?: ObjectTally | null;
  /** What of that no other snapshot has, and nothing that is named beside snapshots. The rest is shared. Absent in a list of growth. */
  private?: ObjectTally | null;
  /** Its record and its tree. Absent in a list of growth. */
  reached?: ObjectTally | null;
  snapshot?: Snapshot | null;
}

export interface StatFileResponse {
  /** The metadata. */
  file?: FileStat | null;
}

export interface StatFilesRequest {
  /** The paths; at most 1,000. */
  paths?: string[];
  /** A snapshot as people write it; empty for the live tree. */
  revision?: string;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

export interface StatFilesResponse {
  /** One for each path, in the order of the request. */
  results?: StatResult[];
}

/** The metadata of one path of a batch, or why there is none. */
export interface StatResult {
  /** Why there is none. */
  failure?: FileFailure | null;
  /** The metadata. */
  file?: FileStat | null;
  /** The path as it was asked for. */
  path?: string;
}

/** A state of a tree, however it is named. */
export interface State {
  /** The directory as it is on the disk now: `directories/{directory}`. Only on the Unix socket. */
  directory?: string;
  /** Nothing at all: an empty tree. */
  empty?: boolean;
  /** A snapshot as people write it: `@` (the head of the workspace in the request), `main@` or `main`, `@{10 minutes ago}`, `@{op:123}`, a label, the beginning of an id, each with `~` or `~3` behind it. */
  revision?: string;
}

/** Sets a state value, or removes it: see StateService. */
export interface StateEdit {
  /** For a removal: accept that there is no value. */
  allowMissing?: boolean;
  /** Only if there is no value; ALREADY_EXISTS otherwise. */
  ifAbsent?: boolean;
  /** Only if the value has this etag, or exists at all for `*`; STALE_FILE otherwise. */
  ifMatch?: string;
  /** The value as JSON text; unset to remove it. */
  json?: string;
  /** The key. */
  key?: string;
}

/** A state value. */
export interface StateValue {
  /** Changes with every change of the value. */
  etag?: string;
  /** The value as JSON text, exactly as it was set. */
  json?: string;
  /** The key. */
  key?: string;
}

/** A step of an episode. */
export interface Step {
  /** How many steps are above it. */
  depth?: number;
  /** Further small values. */
  metadata?: Record<string, string>;
  /** Its number, from 1. */
  number?: number;
  /** The number of the step before it; 0 for a root. */
  parent?: number;
  /** The reward of its state. */
  reward?: number;
  /** `snapshots/{hex}`, its state. */
  snapshot?: string;
  /** When it was recorded. */
  time?: string | null;
  /** The sum of the rewards of these visits. */
  total?: number;
  /** How often a search visited it. */
  visits?: number;
}

/** The numbers of a step that a search changes. */
export interface StepNumbers {
  /** The number of the step. */
  number?: number;
  /** The reward of its state. */
  reward?: number;
  /** The sum of the rewards of these visits. */
  total?: number;
  /** How often a search visited it. */
  visits?: number;
}

/** The store as a whole. Without the tallies where not all workspaces were measured. */
export interface StoreAccount {
  /** Everything that a name leads to, each object once. */
  alive?: ObjectTally | null;
  /** Indexes of directories. Part of disk_bytes. */
  directoryBytes?: number;
  /** All files of the store on the disk. */
  diskBytes?: number;
  /** Free bytes where it lies. */
  freeBytes?: number;
  /** Journals: uncommitted work of mounts. Part of disk_bytes. */
  journalBytes?: number;
  /** The write-ahead log of the database. Part of disk_bytes. */
  logBytes?: number;
  /** What only names that are no workspaces lead to: labels, deleted workspaces, steps of episodes. */
  others?: ObjectTally | null;
  /** Room set aside for a collection on a full disk. Part of disk_bytes. */
  reserveBytes?: number;
  /** What of that more than one workspace leads to, or a workspace and another name; each object once. */
  shared?: ObjectTally | null;
  /** What no name leads to and an undo or a redo may need: the operations within the grace time keep it. */
  undo?: ObjectTally | null;
}

export interface StreamCommandRequest {
  /** Put output into `output`, as it is, instead of into `data`. */
  binary?: boolean;
  /** For `/bin/sh -c`. */
  command?: string;
  /** `/workspace` if empty. */
  cwd?: string;
  envs?: Record<string, string>;
  /** Bytes of output that are streamed; 0 for all. */
  maxOutputSize?: number;
  sandboxId?: string;
  /** Secrets of this command. Each is a file in memory, whose path is in the variable `{NAME}_FILE`; it is removed when the command ends. Secrets are in no log, no snapshot and no list of processes. */
  secrets?: Record<string, string>;
  /** Standard input. */
  stdin?: string;
  /** WriteCommand sends more standard input. */
  stdinOpen?: boolean;
  /** For the REST API, where one path has both calls. */
  stream?: boolean;
  /** In milliseconds. The command and everything that it started are killed then. */
  timeout?: number;
}

/** An event of a command. */
export interface StreamCommandResponse {
  commandId?: string;
  /** Output; bytes that are not UTF-8 are replaced. */
  data?: string;
  /** For `exit`. */
  exitCode?: number;
  /** For `error`. */
  message?: string;
  /** The offset to attach from to go on after this event. */
  nextOffset?: number;
  /** Output, if the caller asked for bytes. */
  output?: string;
  /** Milliseconds since 1970. */
  timestamp?: number;
  /** For `exit`: there was more output. For output: the bytes before it are not kept any more. */
  truncated?: boolean;
  /** `started`, `stdout`, `stderr`, `exit` or `error`. */
  type?: string;
}

/** What is to be put into the queue. */
export interface Submission {
  /** Takes a snapshot of the workspace's uncommitted changes first. With a directory of the host only on the Unix socket. */
  capture?: boolean;
  /** Does not wait until it is merged. */
  detach?: boolean;
  /** Only says what would come of it. The test is not run, and what waits in the queue before it is not looked at. */
  dryRun?: boolean;
  message?: string;
  /** What happens if the policy refuses some of the changes: `review` holds all of them for a review, `partial` merges the others. Empty for what the policy says. */
  onRefused?: string;
  /** Empty for the target of the workspace. */
  target?: string;
  /** A command that must succeed in a directory with the merged files. Only on the Unix socket. */
  test?: string[];
  /** How long it may take; 0 for ten minutes. */
  testSeconds?: number;
  /** `workspaces/{workspace}`. */
  workspace?: string;
}

/** The stage of a merge through the queue. Sent when it changes, and once a second. */
export interface SubmitProgress {
  /** Entries of the target's queue that are dealt with before it. */
  entriesAhead?: number;
  /** The entry of the queue, `queue/{entry}`; empty before it is there. */
  entry?: string;
  /** `capture` (uncommitted changes are captured), `wait` (other merges into the target run), `merge`, `test` (the command runs) or `regenerate` (a command of a rule makes files anew). */
  stage?: string;
  /** For how many seconds it has been in this stage. */
  stageSeconds?: number;
}

/** What came of a submission. */
export interface SubmitResult {
  /** Whether the workspace was taken away. */
  ended?: boolean;
  /** The entry of the queue. */
  entry?: QueueEntry | null;
  /** The merge. */
  merge?: Merge | null;
}

export interface SubmitWorkspaceRequest {
  /** Ends the workspace when its changes have landed, as CompleteWorkspace does. Without it the call is PublishWorkspace. */
  complete?: boolean;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** What is put into the queue. */
  submission?: Submission | null;
}

/** How far it is; the result comes last. */
export interface SubmitWorkspaceResponse {
  progress?: SubmitProgress | null;
  result?: SubmitResult | null;
}

export interface SubscribeResponse {
  /** The event; absent if the message only tells the position. */
  event?: Event | null;
  /** The position to continue after. Also told from time to time while no event passes the filters. */
  position?: string;
}

/** Makes a symlink. */
export interface SymlinkEdit {
  /** Make the directories above it that are missing. */
  createParents?: boolean;
  /** The path. */
  path?: string;
  /** Where it points, escaped like a path. */
  target?: string;
}

/** The use of the machine, each from 0 to 100. */
export interface SystemResources {
  /** All processors, since the last time that somebody asked. */
  cpuUsage?: number;
  /** The file system with the server's data. */
  diskUsage?: number;
  memoryUsage?: number;
}

export interface TakeReviewRequest {
  dryRun?: boolean;
  name?: string;
  /** Only these; empty for all that conflict. */
  paths?: string[];
  requestId?: string;
  side?: "MERGE_SIDE_UNSPECIFIED" | "MERGE_SIDE_OURS" | "MERGE_SIDE_THEIRS";
  /** The version instead of a side: `ours`, `theirs`, `base`, or the name of the target or of the workspace that is merged. */
  version?: string;
}

export interface TakeReviewResponse {
  merge?: Merge | null;
}

/** What sandboxes can be started from. */
export interface Template {
  description?: string;
  name?: string;
  /** The snapshot with the root directory, `snapshots/{snapshot}`; empty for `host`. */
  snapshot?: string;
  tags?: string[];
}

export interface TestWebhookRequest {
  /** `webhooks/{webhook}`. */
  name?: string;
}

export interface TestWebhookResponse {
  /** The queued delivery. */
  delivery?: Delivery | null;
}

/** What is left of an object that was purged. */
export interface Tombstone {
  /** Who purged it. */
  actor?: string;
  /** Its kind and id: `chunk:{hex}`. */
  object?: string;
  /** Why; may be empty. */
  reason?: string;
  time?: string | null;
}

/** A rule that was not it. */
export interface TriedRule {
  line?: number;
  /** Whether its path matches, and it is about content of another sort. */
  otherContent?: boolean;
  source?: string;
}

export interface UndeleteProjectRequest {
  /** `projects/{project}`. */
  name?: string;
}

export interface UndeleteProjectResponse {
  /** The project. */
  project?: Project | null;
}

export interface UndeleteWorkspaceRequest {
  name?: string;
  requestId?: string;
}

export interface UndeleteWorkspaceResponse {
  workspace?: Workspace | null;
}

export interface UndoOperationRequest {
  /** This one. */
  operation?: string;
  requestId?: string;
  /** The last operation of this workspace. */
  workspace?: string;
}

export interface UndoOperationResponse {
  /** What was undone, in words, for example `commit 1f8099ca "parser"`. */
  description?: string;
  operation?: Operation | null;
}

export interface UnfollowSourceRequest {
  requestId?: string;
  /** `workspaces/{workspace}`: the follower. */
  workspace?: string;
}

export interface UnfollowSourceResponse {
  workspace?: Workspace | null;
}

export interface UpdateFollowerRequest {
  /** Only says what would be merged. The source is taken as it is in the store. */
  dryRun?: boolean;
  /** Return without an error if the workspace follows nothing. */
  ifFollowing?: boolean;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
  /** `workspaces/{workspace}`: the follower. */
  workspace?: string;
}

export interface UpdateFollowerResponse {
  /** The merge, if there was something new. */
  merge?: Merge | null;
  /** What the update did; absent if the workspace follows nothing. */
  update?: FollowUpdate | null;
  workspace?: Workspace | null;
}

export interface UpdateStepsRequest {
  /** Return before the change is on disk. */
  buffered?: boolean;
  /** `episodes/{episode}`. */
  name?: string;
  /** Makes a retry return the first result: see docs/API.md. */
  requestId?: string;
  /** The new numbers of steps. */
  updates?: StepNumbers[];
}

export interface UpdateStepsResponse {}

export interface UpdateWorkspaceRequest {
  agent?: string;
  /** If set, it must be the workspace's. */
  etag?: string;
  name?: string;
  project?: string;
  requestId?: string;
}

export interface UpdateWorkspaceResponse {
  workspace?: Workspace | null;
}

/** How far a measuring is. */
export interface UsageProgress {
  done?: number;
  /** `files`, `measure` or `growth`. */
  stage?: string;
  total?: number;
}

/** Something that is damaged, and what it affects. */
export interface VerifyProblem {
  message?: string;
  /** Where it shows: a reference and a path. */
  places?: string[];
  /** The object or record. */
  subject?: string;
}

export interface VerifyResult {
  bytes?: number;
  clean?: boolean;
  objects?: number;
  problems?: VerifyProblem[];
  /** Objects that were purged and that something still refers to. */
  purged?: number;
  /** What was repaired, in words. */
  repaired?: string[];
  thinned?: number;
  unreachable?: number;
}

export interface VerifyStoreRequest {
  /** Read and hash all contents, too. */
  readData?: boolean;
  repair?: boolean;
  /** The caller's id of the request: a retry with the same id returns the first result. */
  requestId?: string;
}

export interface VerifyStoreResponse {
  progress?: Progress | null;
  result?: VerifyResult | null;
}

export interface WatchFilesResponse {
  /** Paths that changed since the message before; empty in the first message, which says that the watch has begun. */
  changes?: FileChange[];
  /** Too many paths changed at once: list the tree again. */
  resync?: boolean;
}

export interface WatchOperationsResponse {
  operation?: Operation | null;
}

export interface WatchSandboxesResponse {
  /** The event; absent if the message only tells the position. */
  event?: SandboxEvent | null;
  /** The position to continue after. */
  position?: string;
}

/** An address that gets events of a project. */
export interface Webhook {
  /** When it was created. */
  createTime?: string | null;
  /** Only events of these kinds, as in `workspace.committed` or `label.*`; empty for all. */
  kinds?: string[];
  /** `webhooks/{webhook}`. */
  name?: string;
  /** The position in the project's events up to which deliveries were queued. */
  position?: string;
  /** The project whose events are sent. */
  project?: string;
  /** The address, http or https. */
  url?: string;
  /** Only events of these workspaces, `workspaces/{workspace}`; a name that ends with `*` means all that begin so; empty for all. */
  workspaces?: string[];
}

export interface WithdrawQueueEntryResponse {
  entry?: QueueEntry | null;
}

/** A named line of work. */
export interface Workspace {
  agent?: string;
  /** The snapshot it began with; empty if it began empty. */
  base?: string;
  createTime?: string | null;
  /** The directories that belong to it, `directories/{directory}`, with their paths. Only on the Unix socket. */
  directories?: WorkspaceDirectory[];
  /** Changes with every change of the workspace. Calls that take an etag fail with STALE_HEAD when it is not this one. */
  etag?: string;
  /** The source that it follows; absent if it follows none. */
  following?: Following | null;
  /** `snapshots/{hex}`; empty while nothing was committed. */
  head?: string;
  /** The name under which the calls of DirectoryService know its live tree: set while it is mounted, and while a mount left work that is in no snapshot. Only on the Unix socket. */
  live?: string;
  /** Where it is mounted. Only on the Unix socket. */
  mounts?: string[];
  /** `workspaces/{workspace}`. */
  name?: string;
  project?: string;
  /** How it is published by itself; missing when it is not. */
  publishing?: Publishing | null;
  /** The workspace that its changes are merged into; empty when nobody said. */
  target?: string;
}

/** What a workspace takes. */
export interface WorkspaceAccount {
  /** Its files, as a listing shows them. */
  files?: WorkspaceUsage | null;
  /** What of that no other name leads to. The rest is shared. */
  private?: ObjectTally | null;
  /** All that its name leads to in the store: its head, where it began, and what their histories still have. */
  reached?: ObjectTally | null;
}

/** A directory that belongs to a workspace. */
export interface WorkspaceDirectory {
  name?: string;
  path?: string;
}

export interface WorkspaceUsage {
  bytes?: number;
  /** Files in the head's tree, and their bytes as a listing shows them. */
  files?: number;
  snapshots?: number;
  workspace?: string;
}

export interface WriteCommandRequest {
  commandId?: string;
  data?: string;
  /** There is no more. */
  end?: boolean;
  sandboxId?: string;
}

export interface WriteCommandResponse {}

/** Writes a file. */
export interface WriteEdit {
  /** Make the directories above it that are missing. */
  createParents?: boolean;
  /** The bytes. */
  data?: string;
  /** Only if there is nothing at this path; ALREADY_EXISTS otherwise. */
  ifAbsent?: boolean;
  /** Only if the file has this etag, or exists at all for `*`; STALE_FILE otherwise. */
  ifMatch?: string;
  /** The permission bits of the file; unset for those that it has, or 0644 for a new one. */
  mode?: number;
  /** Writes into the file from this offset on and keeps its other bytes; unset to replace the whole file. */
  offset?: number;
  /** The path of the file. */
  path?: string;
  /** The bytes as text in UTF-8. */
  text?: string;
}

export interface WriteTerminalRequest {
  data?: string;
  ptyId?: string;
  sandboxId?: string;
}

export interface WriteTerminalResponse {}

/** The fields of each operation. */
export interface Operations {
  /** Merges again, and lets what still conflicts into the target as conflicts. */
  AcceptReview: {
    path: { name: string };
    query: object;
    body: AcceptReviewRequest;
    answer: AcceptReviewResponse;
  };
  /** Makes many edits of any kind, all or none, also across a crash of the process. */
  ApplyEdits: {
    path: { workspace: string };
    query: object;
    body: ApplyEditsRequest;
    answer: ApplyEditsResponse;
  };
  /** Streams the output of a command that runs or has ended, from an offset on. */
  AttachCommand: {
    path: { command_id: string; sandbox_id: string };
    query: { offset?: number; binary?: boolean };
    body: undefined;
    answer: AttachCommandResponse;
  };
  /** Streams the output of a terminal, from an offset on. */
  AttachTerminal: {
    path: { pty_id: string; sandbox_id: string };
    query: { offset?: number };
    body: undefined;
    answer: AttachTerminalResponse;
  };
  /** Deletes up to 50 sandboxes. */
  BatchDeleteSandboxes: {
    path: object;
    query: object;
    body: BatchDeleteSandboxesRequest;
    answer: BatchDeleteSandboxesResponse;
  };
  /** Begins an episode without steps. */
  BeginEpisode: {
    path: object;
    query: object;
    body: BeginEpisodeRequest;
    answer: BeginEpisodeResponse;
  };
  /** Which snapshot each line of a file comes from. */
  BlameFile: {
    path: { revision: string };
    query: { workspace?: string; path?: string };
    body: undefined;
    answer: BlameFileResponse;
  };
  /** Says what is wrong with the text of a policy. */
  CheckPolicy: {
    path: object;
    query: object;
    body: CheckPolicyRequest;
    answer: CheckPolicyResponse;
  };
  /** Says what is wrong with rules. */
  CheckRules: {
    path: object;
    query: object;
    body: CheckRulesRequest;
    answer: CheckRulesResponse;
  };
  /** Ends expired sandboxes, forgets sandboxes that have ended, and removes directories that no sandbox has. */
  CollectGarbage: {
    path: object;
    query: object;
    body: CollectGarbageRequest;
    answer: CollectGarbageResponse;
  };
  /** Deletes what nothing leads to and gives its room back. */
  CollectStore: {
    path: object;
    query: object;
    body: CollectStoreRequest;
    answer: CollectStoreResponse;
  };
  /** Makes edits on the head of a workspace, or on a snapshot, and commits them in one call, without a live tree. */
  CommitEdits: {
    path: { workspace: string };
    query: object;
    body: CommitEditsRequest;
    answer: CommitEditsResponse;
  };
  /** Commits the uncommitted changes of a workspace's live tree. */
  CommitWorkspace: {
    path: { name: string };
    query: object;
    body: CommitWorkspaceRequest;
    answer: CommitWorkspaceResponse;
  };
  /** Compares two steps: their last common step, the steps to each, and the difference of their trees. */
  CompareSteps: {
    path: { name: string };
    query: { before?: number; after?: number };
    body: undefined;
    answer: CompareStepsResponse;
  };
  /** Puts what a workspace changed into the queue of its target and ends the workspace when it has landed. */
  CompleteWorkspace: {
    path: { workspace: string };
    query: object;
    body: CompleteWorkspaceRequest;
    answer: CompleteWorkspaceResponse;
  };
  /** Makes a key. */
  CreateKey: {
    path: object;
    query: object;
    body: CreateKeyRequest;
    answer: CreateKeyResponse;
  };
  /** Makes a project with an empty store. */
  CreateProject: {
    path: object;
    query: object;
    body: CreateProjectRequest;
    answer: CreateProjectResponse;
  };
  /** Starts a sandbox. */
  CreateSandbox: {
    path: object;
    query: object;
    body: CreateSandboxRequest;
    answer: Sandbox;
  };
  /** Makes a symlink. */
  CreateSymlink: {
    path: { workspace: string };
    query: object;
    body: CreateSymlinkRequest;
    answer: CreateSymlinkResponse;
  };
  /** Starts a shell on a terminal. */
  CreateTerminal: {
    path: { sandbox_id: string };
    query: object;
    body: CreateTerminalRequest;
    answer: CreateTerminalResponse;
  };
  /** Creates a webhook. */
  CreateWebhook: {
    path: object;
    query: object;
    body: CreateWebhookRequest;
    answer: CreateWebhookResponse;
  };
  /** Makes a workspace. */
  CreateWorkspace: {
    path: object;
    query: object;
    body: CreateWorkspaceRequest;
    answer: CreateWorkspaceResponse;
  };
  /** Takes a label away. */
  DeleteLabel: {
    path: { name: string };
    query: { requestId?: string; workspace?: string };
    body: undefined;
    answer: DeleteLabelResponse;
  };
  /** Deletes a project. */
  DeleteProject: {
    path: { name: string };
    query: { validateOnly?: boolean };
    body: undefined;
    answer: DeleteProjectResponse;
  };
  /** Ends a sandbox and forgets it. */
  DeleteSandbox: {
    path: { id: string };
    query: { keepWorkspace?: boolean };
    body: undefined;
    answer: DeleteSandboxResponse;
  };
  /** Removes a value of the live tree. */
  DeleteState: {
    path: { key: string; workspace: string };
    query: { ifMatch?: string; allowMissing?: boolean; requestId?: string };
    body: undefined;
    answer: DeleteStateResponse;
  };
  /** Deletes a webhook with its deliveries. */
  DeleteWebhook: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: DeleteWebhookResponse;
  };
  /** Takes a workspace away. */
  DeleteWorkspace: {
    path: { name: string };
    query: { etag?: string; requestId?: string; discardUncommitted?: boolean };
    body: undefined;
    answer: DeleteWorkspaceResponse;
  };
  /** What differs between two states, path by path. */
  DiffStates: {
    path: object;
    query: { "before.revision"?: string; "before.directory"?: string; "before.empty"?: boolean; "after.revision"?: string; "after.directory"?: string; "after.empty"?: boolean; workspace?: string; paths?: string[]; times?: boolean; renames?: boolean; withoutGit?: boolean };
    body: undefined;
    answer: DiffStatesResponse;
  };
  /** Drops an episode: it no longer keeps its snapshots. */
  DropEpisode: {
    path: { name: string };
    query: { requestId?: string };
    body: undefined;
    answer: DropEpisodeResponse;
  };
  /** Changes a text file: by exact search and replace, or by a unified patch. */
  EditFile: {
    path: { workspace: string };
    query: object;
    body: EditFileRequest;
    answer: EditFileResponse;
  };
  /** What an agent may do with a path, and by which rule. */
  ExplainPolicy: {
    path: object;
    query: { agent?: string; path?: string; text?: string };
    body: undefined;
    answer: ExplainPolicyResponse;
  };
  /** Says in which way a path is merged, and why. */
  ExplainRules: {
    path: object;
    query: object;
    body: ExplainRulesRequest;
    answer: ExplainRulesResponse;
  };
  /** An episode as JSON lines: a header, then one line for each step. */
  ExportEpisode: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: ExportEpisodeResponse;
  };
  /** Lets a sandbox live longer: 3,600 seconds at most by one call, 24 hours in all. */
  ExtendSandbox: {
    path: { id: string };
    query: object;
    body: ExtendSandboxRequest;
    answer: Sandbox;
  };
  /** Every path that matches a pattern and is or was in a history, with the newest snapshot that has it. */
  FindPaths: {
    path: object;
    query: { pattern?: string; revisions?: string[]; workspace?: string; all?: boolean; project?: boolean; withoutGit?: boolean };
    body: undefined;
    answer: FindPathsResponse;
  };
  /** Finishes an episode: it is kept, and cannot be dropped until it is released. */
  FinishEpisode: {
    path: { name: string };
    query: object;
    body: FinishEpisodeRequest;
    answer: FinishEpisodeResponse;
  };
  /** Makes a workspace follow a source, and updates it. */
  FollowSource: {
    path: { workspace: string };
    query: object;
    body: FollowSourceRequest;
    answer: FollowSourceResponse;
  };
  /** Forgets resolutions. */
  ForgetResolutions: {
    path: object;
    query: object;
    body: ForgetResolutionsRequest;
    answer: ForgetResolutionsResponse;
  };
  /** Copies the workspace, the home and the `/tmp` of a running sandbox, without pausing it, and starts a sandbox on each copy. */
  ForkSandbox: {
    path: { id: string };
    query: object;
    body: ForkSandboxRequest;
    answer: ForkSandboxResponse;
  };
  /** Makes workspaces that begin where another one stands, all of them or none. */
  ForkWorkspace: {
    path: { name: string };
    query: object;
    body: ForkWorkspaceRequest;
    answer: ForkWorkspaceResponse;
  };
  /** The leaf with the highest reward, or the best steps. */
  GetBestSteps: {
    path: { name: string };
    query: { order?: "STEP_ORDER_UNSPECIFIED" | "STEP_ORDER_REWARD" | "STEP_ORDER_MEAN"; count?: number };
    body: undefined;
    answer: GetBestStepsResponse;
  };
  /** The key that makes this call. */
  GetCaller: {
    path: object;
    query: object;
    body: undefined;
    answer: GetCallerResponse;
  };
  /** Whether one is under way, what the last one came to, and how much room there is. */
  GetCollection: {
    path: object;
    query: object;
    body: undefined;
    answer: GetCollectionResponse;
  };
  /** One episode. */
  GetEpisode: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: GetEpisodeResponse;
  };
  /** One operation. */
  GetOperation: {
    path: { name: string };
    query: { pageToken?: string };
    body: undefined;
    answer: GetOperationResponse;
  };
  /** A unified patch that `git apply` takes. */
  GetPatch: {
    path: object;
    query: { "before.revision"?: string; "before.directory"?: string; "before.empty"?: boolean; "after.revision"?: string; "after.directory"?: string; "after.empty"?: boolean; workspace?: string; paths?: string[]; contextLines?: number; withoutGit?: boolean };
    body: undefined;
    answer: GetPatchResponse;
  };
  /** The policy as it is now. */
  GetPolicy: {
    path: object;
    query: object;
    body: undefined;
    answer: GetPolicyResponse;
  };
  /** One project. */
  GetProject: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: GetProjectResponse;
  };
  /** The disk space of a project and the number of its objects. */
  GetProjectUsage: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: GetProjectUsageResponse;
  };
  /** One entry of the queue. */
  GetQueueEntry: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: GetQueueEntryResponse;
  };
  /** The overlaps at this moment. */
  GetRadar: {
    path: object;
    query: { workspace?: string; pathPrefix?: string; pathsOnly?: boolean; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: GetRadarResponse;
  };
  /** Says what became of a request of this caller: done, running, or neither. */
  GetRequest: {
    path: { request_id: string };
    query: { method?: string };
    body: undefined;
    answer: GetRequestResponse;
  };
  /** One merge that waits for a person, with who made each version. */
  GetReview: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: GetReviewResponse;
  };
  /** One sandbox. */
  GetSandbox: {
    path: { id: string };
    query: object;
    body: undefined;
    answer: Sandbox;
  };
  /** What happened to a sandbox, line by line. */
  GetSandboxLogs: {
    path: { id: string };
    query: { tail?: number; since?: string | null; until?: string | null };
    body: undefined;
    answer: GetSandboxLogsResponse;
  };
  /** The resources that a sandbox uses. */
  GetSandboxStats: {
    path: { id: string };
    query: object;
    body: undefined;
    answer: GetSandboxStatsResponse;
  };
  /** One snapshot by any of its names. */
  GetSnapshot: {
    path: { revision: string };
    query: { workspace?: string };
    body: undefined;
    answer: GetSnapshotResponse;
  };
  /** One value. */
  GetState: {
    path: { key: string; workspace: string };
    query: { revision?: string };
    body: undefined;
    answer: GetStateResponse;
  };
  /** The uncommitted changes of a workspace's live tree. */
  GetStatus: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: GetStatusResponse;
  };
  /** The steps from a root to a step. */
  GetStepPath: {
    path: { name: string };
    query: { number?: number };
    body: undefined;
    answer: GetStepPathResponse;
  };
  /** Sandboxes, the use of the machine, NFS clients, and since when the server runs. */
  GetSystemStats: {
    path: object;
    query: object;
    body: undefined;
    answer: GetSystemStatsResponse;
  };
  /** One template. */
  GetTemplate: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: GetTemplateResponse;
  };
  /** One webhook. */
  GetWebhook: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: GetWebhookResponse;
  };
  /** One workspace. */
  GetWorkspace: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: GetWorkspaceResponse;
  };
  /** Where a program finds the files of a workspace as a directory. */
  GetWorkspacePath: {
    path: { workspace: string };
    query: object;
    body: undefined;
    answer: GetWorkspacePathResponse;
  };
  /** The paths that match a glob. */
  GlobFiles: {
    path: { workspace: string };
    query: { revision?: string; pattern?: string; path?: string; limit?: number; withoutGit?: boolean };
    body: undefined;
    answer: GlobFilesResponse;
  };
  /** The lines that match a regular expression. */
  GrepFiles: {
    path: { workspace: string };
    query: { revision?: string; pattern?: string; fixed?: boolean; ignoreCase?: boolean; paths?: string[]; globs?: string[]; limit?: number; withoutGit?: boolean };
    body: undefined;
    answer: GrepFilesResponse;
  };
  /** What a change comes to: lines, languages, sizes, risks; file by file, then the sum. */
  InspectChange: {
    path: object;
    query: { "before.revision"?: string; "before.directory"?: string; "before.empty"?: boolean; "after.revision"?: string; "after.directory"?: string; "after.empty"?: boolean; workspace?: string; paths?: string[]; withoutGit?: boolean };
    body: undefined;
    answer: InspectChangeResponse;
  };
  /** Sends a signal to a command and everything that it started. */
  KillCommand: {
    path: { command_id: string; sandbox_id: string };
    query: object;
    body: KillCommandRequest;
    answer: KillCommandResponse;
  };
  /** Ends a terminal and its processes. */
  KillTerminal: {
    path: { pty_id: string; sandbox_id: string };
    query: object;
    body: undefined;
    answer: KillTerminalResponse;
  };
  /** The commands that run and the last ones that have ended. */
  ListCommands: {
    path: { sandbox_id: string };
    query: object;
    body: undefined;
    answer: ListCommandsResponse;
  };
  /** The conflicts of a state, by path. */
  ListConflicts: {
    path: { workspace: string };
    query: { "state.revision"?: string; "state.directory"?: string; "state.empty"?: boolean; paths?: string[]; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListConflictsResponse;
  };
  /** The newest deliveries of a webhook, newest first. */
  ListDeliveries: {
    path: { name: string };
    query: { failed?: boolean; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListDeliveriesResponse;
  };
  /** Episodes by name. */
  ListEpisodes: {
    path: object;
    query: { prefix?: string; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListEpisodesResponse;
  };
  /** The names in a directory, or all below it, page by page. */
  ListFiles: {
    path: { workspace: string };
    query: { revision?: string; path?: string; recursive?: boolean; pageSize?: number; pageToken?: string; withoutGit?: boolean };
    body: undefined;
    answer: ListFilesResponse;
  };
  /** What each snapshot of a history brought, newest first. */
  ListGrowth: {
    path: object;
    query: { workspace?: string; revision?: string; here?: string; limit?: number };
    body: undefined;
    answer: ListGrowthResponse;
  };
  /** All keys by time of creation, revoked and expired ones too. */
  ListKeys: {
    path: object;
    query: { pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListKeysResponse;
  };
  /** Labels by name. */
  ListLabels: {
    path: object;
    query: { prefix?: string; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListLabelsResponse;
  };
  /** Operations, newest first. */
  ListOperations: {
    path: object;
    query: { workspace?: string; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListOperationsResponse;
  };
  /** The operations that changed the policy, newest first. */
  ListPolicyChanges: {
    path: object;
    query: { pageSize?: number };
    body: undefined;
    answer: ListPolicyChangesResponse;
  };
  /** The projects that the caller may use, by name. */
  ListProjects: {
    path: object;
    query: { pageSize?: number; pageToken?: string; showDeleted?: boolean };
    body: undefined;
    answer: ListProjectsResponse;
  };
  /** What waits to be merged, the oldest of each target first. */
  ListQueue: {
    path: object;
    query: { target?: string; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListQueueResponse;
  };
  /** The resolutions that are remembered. */
  ListResolutions: {
    path: object;
    query: { pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListResolutionsResponse;
  };
  /** What waits for a person. */
  ListReviews: {
    path: object;
    query: { target?: string; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListReviewsResponse;
  };
  /** The sandboxes of the project, newest first. */
  ListSandboxes: {
    path: object;
    query: { page?: number; limit?: number; state?: string; namePrefix?: string };
    body: undefined;
    answer: ListSandboxesResponse;
  };
  /** A log: what led to some snapshots, newest first. */
  ListSnapshots: {
    path: object;
    query: { revisions?: string[]; workspace?: string; all?: boolean; pageSize?: number; pageToken?: string; paths?: string[]; exclude?: string[]; project?: boolean };
    body: undefined;
    answer: ListSnapshotsResponse;
  };
  /** The values whose keys start with a prefix, sorted by key. */
  ListStates: {
    path: { workspace: string };
    query: { revision?: string; prefix?: string; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListStatesResponse;
  };
  /** The steps of an episode by number, or the children of one. */
  ListSteps: {
    path: { name: string };
    query: { parent?: number; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListStepsResponse;
  };
  /** What sandboxes can be started from. */
  ListTemplates: {
    path: object;
    query: object;
    body: undefined;
    answer: ListTemplatesResponse;
  };
  /** What was purged, in the order of ids. */
  ListTombstones: {
    path: object;
    query: { pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListTombstonesResponse;
  };
  /** The snapshots that changed a path, newest first. */
  ListVersions: {
    path: { revision: string };
    query: { workspace?: string; path?: string; follow?: boolean; limit?: number };
    body: undefined;
    answer: ListVersionsResponse;
  };
  /** Webhooks by time of creation. */
  ListWebhooks: {
    path: object;
    query: { project?: string; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListWebhooksResponse;
  };
  /** Workspaces by name. */
  ListWorkspaces: {
    path: object;
    query: { prefix?: string; pageSize?: number; pageToken?: string };
    body: undefined;
    answer: ListWorkspacesResponse;
  };
  /** Makes a directory. */
  MakeDirectory: {
    path: { workspace: string };
    query: object;
    body: MakeDirectoryRequest;
    answer: MakeDirectoryResponse;
  };
  /** How much room things take. */
  MeasureStore: {
    path: object;
    query: { pageSize?: number; pageToken?: string };
    body: undefined;
    answer: MeasureStoreResponse;
  };
  /** What all workspaces, one of them or a snapshot take in the store, and what of that they share. */
  MeasureUsage: {
    path: object;
    query: { workspace?: string; revision?: string; here?: string; snapshots?: number };
    body: undefined;
    answer: MeasureUsageResponse;
  };
  /** Merges workspaces into another at once: one snapshot, or nothing. */
  MergeWorkspaces: {
    path: { target: string };
    query: object;
    body: MergeWorkspacesRequest;
    answer: MergeWorkspacesResponse;
  };
  /** The next snapshot to try in the search for the first broken one. */
  NextBisectStep: {
    path: object;
    query: object;
    body: NextBisectStepRequest;
    answer: NextBisectStepResponse;
  };
  /** Makes a URL at which a port of a running sandbox is reached without a key, for web pages and programs that send none. */
  OpenPort: {
    path: { port: string; sandbox_id: string };
    query: object;
    body: OpenPortRequest;
    answer: OpenPortResponse;
  };
  /** Says whether the store's process collects by itself. */
  PauseCollection: {
    path: object;
    query: object;
    body: PauseCollectionRequest;
    answer: PauseCollectionResponse;
  };
  /** Ends the processes of a sandbox, and commits and keeps its workspace. */
  PauseSandbox: {
    path: { id: string };
    query: object;
    body: PauseSandboxRequest;
    answer: Sandbox;
  };
  /** What retention makes of every snapshot, and why. */
  PlanCollection: {
    path: object;
    query: { workspace?: string; graceSeconds?: number };
    body: undefined;
    answer: PlanCollectionResponse;
  };
  /** The same without ending it. */
  PublishWorkspace: {
    path: { workspace: string };
    query: object;
    body: PublishWorkspaceRequest;
    answer: PublishWorkspaceResponse;
  };
  /** One conflict, and the bytes of one of its versions or of the file with markers. */
  ReadConflict: {
    path: object;
    query: object;
    body: ReadConflictRequest;
    answer: ReadConflictResponse;
  };
  /** The bytes of many small files of one state of the tree. */
  ReadFiles: {
    path: { workspace: string };
    query: object;
    body: ReadFilesRequest;
    answer: ReadFilesResponse;
  };
  /** Records a step: an existing snapshot, or edits on a snapshot, which are committed in the same transaction. */
  RecordStep: {
    path: { name: string };
    query: object;
    body: RecordStepRequest;
    answer: RecordStepResponse;
  };
  /** Does again what was taken back last. */
  RedoOperation: {
    path: object;
    query: object;
    body: RedoOperationRequest;
    answer: RedoOperationResponse;
  };
  /** Does not merge it. */
  RejectReview: {
    path: { name: string };
    query: object;
    body: RejectReviewRequest;
    answer: RejectReviewResponse;
  };
  /** Releases a finished episode, so that it can be dropped. */
  ReleaseEpisode: {
    path: { name: string };
    query: object;
    body: ReleaseEpisodeRequest;
    answer: ReleaseEpisodeResponse;
  };
  /** Merges an entry that an undo brought back. */
  ReleaseQueueEntry: {
    path: { name: string };
    query: object;
    body: ReleaseQueueEntryRequest;
    answer: ReleaseQueueEntryResponse;
  };
  /** Removes a file, or a directory. */
  RemoveFile: {
    path: { workspace: string };
    query: object;
    body: RemoveFileRequest;
    answer: RemoveFileResponse;
  };
  /** Gives an entry another path. */
  RenameFile: {
    path: { workspace: string };
    query: object;
    body: RenameFileRequest;
    answer: RenameFileResponse;
  };
  /** Gives a workspace another name. */
  RenameWorkspace: {
    path: { name: string };
    query: object;
    body: RenameWorkspaceRequest;
    answer: RenameWorkspaceResponse;
  };
  /** Queues a delivery again, with the same event and the same id. */
  ReplayDelivery: {
    path: { name: string; number: string };
    query: object;
    body: ReplayDeliveryRequest;
    answer: ReplayDeliveryResponse;
  };
  /** Sets the size of a terminal. */
  ResizeTerminal: {
    path: { pty_id: string; sandbox_id: string };
    query: object;
    body: ResizeTerminalRequest;
    answer: ResizeTerminalResponse;
  };
  /** Puts one version in the place of conflicts, in the head of a workspace and in its directory. */
  ResolveConflicts: {
    path: { workspace: string };
    query: object;
    body: ResolveConflictsRequest;
    answer: ResolveConflictsResponse;
  };
  /** Makes an old tree, or paths of it, the newest snapshot of a workspace. */
  RestoreWorkspace: {
    path: { name: string };
    query: object;
    body: RestoreWorkspaceRequest;
    answer: RestoreWorkspaceResponse;
  };
  /** Starts a stopped sandbox again, with the same id, on the same workspace and with the same home and `/tmp`. */
  ResumeSandbox: {
    path: { id: string };
    query: object;
    body: ResumeSandboxRequest;
    answer: Sandbox;
  };
  /** Revokes a key for ever. */
  RevokeKey: {
    path: { name: string };
    query: object;
    body: undefined;
    answer: RevokeKeyResponse;
  };
  /** Runs a command and returns its output. */
  RunCommand: {
    path: { sandbox_id: string };
    query: object;
    body: RunCommandRequest;
    answer: RunCommandResponse;
  };
  /** The whole round in one call: updates a workspace that follows a source, forks it, starts a sandbox on the fork, runs a command, finds what it changed, ends the sandbox, and, if the command ended with 0, merges the fork through the queue. */
  RunOnFork: {
    path: object;
    query: object;
    body: RunOnForkRequest;
    answer: RunOnForkResponse;
  };
  /** Says that a workspace is published by itself, by interval or on a commit, or that it is not any more. */
  SchedulePublishing: {
    path: { workspace: string };
    query: object;
    body: SchedulePublishingRequest;
    answer: SchedulePublishingResponse;
  };
  /** The lines of files in a tree that match a pattern. */
  SearchFiles: {
    path: object;
    query: { "state.revision"?: string; "state.directory"?: string; "state.empty"?: boolean; workspace?: string; paths?: string[]; pattern?: string; fixed?: boolean; ignoreCase?: boolean; withoutGit?: boolean };
    body: undefined;
    answer: SearchFilesResponse;
  };
  /** Sets permission bits, the modification time and extended attributes. */
  SetAttributes: {
    path: { workspace: string };
    query: object;
    body: SetAttributesRequest;
    answer: SetAttributesResponse;
  };
  /** Puts a label on a snapshot, or moves it there. */
  SetLabel: {
    path: { label_id: string };
    query: object;
    body: SetLabelRequest;
    answer: SetLabelResponse;
  };
  /** Replaces the policy, or removes it. */
  SetPolicy: {
    path: object;
    query: object;
    body: SetPolicyRequest;
    answer: SetPolicyResponse;
  };
  /** Sets when a sandbox is ended: so many seconds from now, 24 hours at most. */
  SetSandboxTimeout: {
    path: { id: string };
    query: object;
    body: SetSandboxTimeoutRequest;
    answer: Sandbox;
  };
  /** Sets a value of the live tree. */
  SetState: {
    path: { key: string; workspace: string };
    query: object;
    body: SetStateRequest;
    answer: SetStateResponse;
  };
  /** The metadata of one path. */
  StatFile: {
    path: { workspace: string };
    query: { revision?: string; path?: string };
    body: undefined;
    answer: StatFileResponse;
  };
  /** The metadata of many paths of one state of the tree. */
  StatFiles: {
    path: { workspace: string };
    query: object;
    body: StatFilesRequest;
    answer: StatFilesResponse;
  };
  /** Runs a command and streams its output. */
  StreamCommand: {
    path: { sandbox_id: string };
    query: object;
    body: StreamCommandRequest;
    answer: StreamCommandResponse;
  };
  /** Completes or publishes a workspace like the two calls above, and tells how far it is. */
  SubmitWorkspace: {
    path: { workspace: string };
    query: object;
    body: SubmitWorkspaceRequest;
    answer: SubmitWorkspaceResponse;
  };
  /** Events from a position on, without a gap, until the client ends the stream. */
  Subscribe: {
    path: object;
    query: { after?: string; workspaces?: string[]; kinds?: string[]; withOperation?: boolean; compact?: boolean };
    body: undefined;
    answer: SubscribeResponse;
  };
  /** Merges again, with one side taken wherever both cannot be had. */
  TakeReview: {
    path: { name: string };
    query: object;
    body: TakeReviewRequest;
    answer: TakeReviewResponse;
  };
  /** Sends the event `webhook.test` once more than now: the delivery is queued, and the server makes it at once. */
  TestWebhook: {
    path: { name: string };
    query: object;
    body: TestWebhookRequest;
    answer: TestWebhookResponse;
  };
  /** Brings a deleted project back. */
  UndeleteProject: {
    path: { name: string };
    query: object;
    body: UndeleteProjectRequest;
    answer: UndeleteProjectResponse;
  };
  /** Brings a deleted workspace back. */
  UndeleteWorkspace: {
    path: { name: string };
    query: object;
    body: UndeleteWorkspaceRequest;
    answer: UndeleteWorkspaceResponse;
  };
  /** Takes an operation back: the last one of a workspace, or one by its number. */
  UndoOperation: {
    path: object;
    query: object;
    body: UndoOperationRequest;
    answer: UndoOperationResponse;
  };
  /** Ends the following. */
  UnfollowSource: {
    path: { workspace: string };
    query: object;
    body: UnfollowSourceRequest;
    answer: UnfollowSourceResponse;
  };
  /** Updates a follower now, and returns when its files are updated. */
  UpdateFollower: {
    path: { workspace: string };
    query: object;
    body: UpdateFollowerRequest;
    answer: UpdateFollowerResponse;
  };
  /** Sets the reward, visits and total of steps, all or none. */
  UpdateSteps: {
    path: { name: string };
    query: object;
    body: UpdateStepsRequest;
    answer: UpdateStepsResponse;
  };
  /** Says whose a workspace is and what it belongs to. */
  UpdateWorkspace: {
    path: { name: string };
    query: object;
    body: UpdateWorkspaceRequest;
    answer: UpdateWorkspaceResponse;
  };
  /** Looks at everything that is stored, and repairs what can be if asked to. */
  VerifyStore: {
    path: object;
    query: object;
    body: VerifyStoreRequest;
    answer: VerifyStoreResponse;
  };
  /** The paths of a live tree that change, as they change. */
  WatchFiles: {
    path: { workspace: string };
    query: { path?: string };
    body: undefined;
    answer: WatchFilesResponse;
  };
  /** Operations as they happen, from a place in the log on. */
  WatchOperations: {
    path: object;
    query: { after?: number };
    body: undefined;
    answer: WatchOperationsResponse;
  };
  /** What happens to the sandboxes of the project, from a position on, until the client ends the stream. */
  WatchSandboxes: {
    path: object;
    query: { after?: string; kinds?: string[]; sandboxId?: string };
    body: undefined;
    answer: WatchSandboxesResponse;
  };
  /** Takes an entry out of the queue, unmerged. */
  WithdrawQueueEntry: {
    path: { name: string };
    query: { requestId?: string; dryRun?: boolean };
    body: undefined;
    answer: WithdrawQueueEntryResponse;
  };
  /** Sends standard input to a command that was started with `stdin_open`. */
  WriteCommand: {
    path: { command_id: string; sandbox_id: string };
    query: object;
    body: WriteCommandRequest;
    answer: WriteCommandResponse;
  };
  /** Sends input to a terminal. */
  WriteTerminal: {
    path: { pty_id: string; sandbox_id: string };
    query: object;
    body: WriteTerminalRequest;
    answer: WriteTerminalResponse;
  };
}

/** Where each operation is, whether a request id makes it safe to repeat, and whether its answer is a stream. */
export const OPERATIONS = {
  AcceptReview: { verb: "POST", path: "/reviews/{name}/accept", hasRequestId: true, isStream: false },
  ApplyEdits: { verb: "POST", path: "/workspaces/{workspace}/edits", hasRequestId: true, isStream: false },
  AttachCommand: { verb: "GET", path: "/sandboxes/{sandbox_id}/process/{command_id}/output", hasRequestId: false, isStream: true },
  AttachTerminal: { verb: "GET", path: "/sandboxes/{sandbox_id}/pty/{pty_id}/output", hasRequestId: false, isStream: true },
  BatchDeleteSandboxes: { verb: "POST", path: "/sandboxes/batch-delete", hasRequestId: false, isStream: false },
  BeginEpisode: { verb: "POST", path: "/episodes", hasRequestId: true, isStream: false },
  BlameFile: { verb: "GET", path: "/snapshots/{revision}/blame", hasRequestId: false, isStream: false },
  CheckPolicy: { verb: "POST", path: "/policy/check", hasRequestId: false, isStream: false },
  CheckRules: { verb: "POST", path: "/rules/check", hasRequestId: false, isStream: false },
  CollectGarbage: { verb: "POST", path: "/gc", hasRequestId: false, isStream: false },
  CollectStore: { verb: "POST", path: "/collections", hasRequestId: true, isStream: true },
  CommitEdits: { verb: "POST", path: "/workspaces/{workspace}/commit-edits", hasRequestId: true, isStream: false },
  CommitWorkspace: { verb: "POST", path: "/workspaces/{name}/commit", hasRequestId: true, isStream: false },
  CompareSteps: { verb: "GET", path: "/episodes/{name}/compare", hasRequestId: false, isStream: false },
  CompleteWorkspace: { verb: "POST", path: "/workspaces/{workspace}/complete", hasRequestId: true, isStream: false },
  CreateKey: { verb: "POST", path: "/keys", hasRequestId: false, isStream: false },
  CreateProject: { verb: "POST", path: "/projects", hasRequestId: false, isStream: false },
  CreateSandbox: { verb: "POST", path: "/sandboxes", hasRequestId: false, isStream: false },
  CreateSymlink: { verb: "POST", path: "/workspaces/{workspace}/symlinks", hasRequestId: true, isStream: false },
  CreateTerminal: { verb: "POST", path: "/sandboxes/{sandbox_id}/pty", hasRequestId: false, isStream: false },
  CreateWebhook: { verb: "POST", path: "/webhooks", hasRequestId: false, isStream: false },
  CreateWorkspace: { verb: "POST", path: "/workspaces", hasRequestId: true, isStream: false },
  DeleteLabel: { verb: "DELETE", path: "/labels/{name}", hasRequestId: true, isStream: false },
  DeleteProject: { verb: "DELETE", path: "/projects/{name}", hasRequestId: false, isStream: false },
  DeleteSandbox: { verb: "DELETE", path: "/sandboxes/{id}", hasRequestId: false, isStream: false },
  DeleteState: { verb: "DELETE", path: "/workspaces/{workspace}/state/{key}", hasRequestId: true, isStream: false },
  DeleteWebhook: { verb: "DELETE", path: "/webhooks/{name}", hasRequestId: false, isStream: false },
  DeleteWorkspace: { verb: "DELETE", path: "/workspaces/{name}", hasRequestId: true, isStream: false },
  DiffStates: { verb: "GET", path: "/diff", hasRequestId: false, isStream: true },
  DropEpisode: { verb: "DELETE", path: "/episodes/{name}", hasRequestId: true, isStream: false },
  EditFile: { verb: "POST", path: "/workspaces/{workspace}/edit", hasRequestId: true, isStream: false },
  ExplainPolicy: { verb: "GET", path: "/policy/explain", hasRequestId: false, isStream: false },
  ExplainRules: { verb: "POST", path: "/rules/explain", hasRequestId: false, isStream: false },
  ExportEpisode: { verb: "GET", path: "/episodes/{name}/export", hasRequestId: false, isStream: true },
  ExtendSandbox: { verb: "POST", path: "/sandboxes/{id}/extend", hasRequestId: false, isStream: false },
  FindPaths: { verb: "GET", path: "/find", hasRequestId: false, isStream: true },
  FinishEpisode: { verb: "POST", path: "/episodes/{name}/finish", hasRequestId: true, isStream: false },
  FollowSource: { verb: "POST", path: "/workspaces/{workspace}/follow", hasRequestId: true, isStream: false },
  ForgetResolutions: { verb: "POST", path: "/resolutions/forget", hasRequestId: true, isStream: false },
  ForkSandbox: { verb: "POST", path: "/sandboxes/{id}/fork", hasRequestId: false, isStream: false },
  ForkWorkspace: { verb: "POST", path: "/workspaces/{name}/fork", hasRequestId: true, isStream: false },
  GetBestSteps: { verb: "GET", path: "/episodes/{name}/best", hasRequestId: false, isStream: false },
  GetCaller: { verb: "GET", path: "/caller", hasRequestId: false, isStream: false },
  GetCollection: { verb: "GET", path: "/collections/current", hasRequestId: false, isStream: false },
  GetEpisode: { verb: "GET", path: "/episodes/{name}", hasRequestId: false, isStream: false },
  GetOperation: { verb: "GET", path: "/operations/{name}", hasRequestId: false, isStream: false },
  GetPatch: { verb: "GET", path: "/patch", hasRequestId: false, isStream: true },
  GetPolicy: { verb: "GET", path: "/policy", hasRequestId: false, isStream: false },
  GetProject: { verb: "GET", path: "/projects/{name}", hasRequestId: false, isStream: false },
  GetProjectUsage: { verb: "GET", path: "/projects/{name}/usage", hasRequestId: false, isStream: false },
  GetQueueEntry: { verb: "GET", path: "/queue/{name}", hasRequestId: false, isStream: false },
  GetRadar: { verb: "GET", path: "/radar", hasRequestId: false, isStream: false },
  GetRequest: { verb: "GET", path: "/requests/{request_id}", hasRequestId: false, isStream: false },
  GetReview: { verb: "GET", path: "/reviews/{name}", hasRequestId: false, isStream: false },
  GetSandbox: { verb: "GET", path: "/sandboxes/{id}", hasRequestId: false, isStream: false },
  GetSandboxLogs: { verb: "GET", path: "/sandboxes/{id}/logs", hasRequestId: false, isStream: false },
  GetSandboxStats: { verb: "GET", path: "/sandboxes/{id}/stats", hasRequestId: false, isStream: false },
  GetSnapshot: { verb: "GET", path: "/snapshots/{revision}", hasRequestId: false, isStream: false },
  GetState: { verb: "GET", path: "/workspaces/{workspace}/state/{key}", hasRequestId: false, isStream: false },
  GetStatus: { verb: "GET", path: "/workspaces/{name}/status", hasRequestId: false, isStream: false },
  GetStepPath: { verb: "GET", path: "/episodes/{name}/path", hasRequestId: false, isStream: false },
  GetSystemStats: { verb: "GET", path: "/stats", hasRequestId: false, isStream: false },
  GetTemplate: { verb: "GET", path: "/templates/{name}", hasRequestId: false, isStream: false },
  GetWebhook: { verb: "GET", path: "/webhooks/{name}", hasRequestId: false, isStream: false },
  GetWorkspace: { verb: "GET", path: "/workspaces/{name}", hasRequestId: false, isStream: false },
  GetWorkspacePath: { verb: "GET", path: "/workspaces/{workspace}/path", hasRequestId: false, isStream: false },
  GlobFiles: { verb: "GET", path: "/workspaces/{workspace}/glob", hasRequestId: false, isStream: true },
  GrepFiles: { verb: "GET", path: "/workspaces/{workspace}/grep", hasRequestId: false, isStream: true },
  InspectChange: { verb: "GET", path: "/insight", hasRequestId: false, isStream: true },
  KillCommand: { verb: "POST", path: "/sandboxes/{sandbox_id}/process/{command_id}/kill", hasRequestId: false, isStream: false },
  KillTerminal: { verb: "DELETE", path: "/sandboxes/{sandbox_id}/pty/{pty_id}", hasRequestId: false, isStream: false },
  ListCommands: { verb: "GET", path: "/sandboxes/{sandbox_id}/process", hasRequestId: false, isStream: false },
  ListConflicts: { verb: "GET", path: "/workspaces/{workspace}/conflicts", hasRequestId: false, isStream: false },
  ListDeliveries: { verb: "GET", path: "/webhooks/{name}/deliveries", hasRequestId: false, isStream: false },
  ListEpisodes: { verb: "GET", path: "/episodes", hasRequestId: false, isStream: false },
  ListFiles: { verb: "GET", path: "/workspaces/{workspace}/list", hasRequestId: false, isStream: false },
  ListGrowth: { verb: "GET", path: "/growth", hasRequestId: false, isStream: true },
  ListKeys: { verb: "GET", path: "/keys", hasRequestId: false, isStream: false },
  ListLabels: { verb: "GET", path: "/labels", hasRequestId: false, isStream: false },
  ListOperations: { verb: "GET", path: "/operations", hasRequestId: false, isStream: false },
  ListPolicyChanges: { verb: "GET", path: "/policy/changes", hasRequestId: false, isStream: false },
  ListProjects: { verb: "GET", path: "/projects", hasRequestId: false, isStream: false },
  ListQueue: { verb: "GET", path: "/queue", hasRequestId: false, isStream: false },
  ListResolutions: { verb: "GET", path: "/resolutions", hasRequestId: false, isStream: false },
  ListReviews: { verb: "GET", path: "/reviews", hasRequestId: false, isStream: false },
  ListSandboxes: { verb: "GET", path: "/sandboxes", hasRequestId: false, isStream: false },
  ListSnapshots: { verb: "GET", path: "/snapshots", hasRequestId: false, isStream: false },
  ListStates: { verb: "GET", path: "/workspaces/{workspace}/state", hasRequestId: false, isStream: false },
  ListSteps: { verb: "GET", path: "/episodes/{name}/steps", hasRequestId: false, isStream: false },
  ListTemplates: { verb: "GET", path: "/templates", hasRequestId: false, isStream: false },
  ListTombstones: { verb: "GET", path: "/tombstones", hasRequestId: false, isStream: false },
  ListVersions: { verb: "GET", path: "/snapshots/{revision}/versions", hasRequestId: false, isStream: true },
  ListWebhooks: { verb: "GET", path: "/webhooks", hasRequestId: false, isStream: false },
  ListWorkspaces: { verb: "GET", path: "/workspaces", hasRequestId: false, isStream: false },
  MakeDirectory: { verb: "POST", path: "/workspaces/{workspace}/directories", hasRequestId: true, isStream: false },
  MeasureStore: { verb: "GET", path: "/store", hasRequestId: false, isStream: false },
  MeasureUsage: { verb: "GET", path: "/usage", hasRequestId: false, isStream: true },
  MergeWorkspaces: { verb: "POST", path: "/workspaces/{target}/merge", hasRequestId: true, isStream: false },
  NextBisectStep: { verb: "POST", path: "/bisect", hasRequestId: false, isStream: false },
  OpenPort: { verb: "POST", path: "/sandboxes/{sandbox_id}/ports/{port}", hasRequestId: false, isStream: false },
  PauseCollection: { verb: "POST", path: "/collections/pause", hasRequestId: true, isStream: false },
  PauseSandbox: { verb: "POST", path: "/sandboxes/{id}/pause", hasRequestId: false, isStream: false },
  PlanCollection: { verb: "GET", path: "/collections/plan", hasRequestId: false, isStream: true },
  PublishWorkspace: { verb: "POST", path: "/workspaces/{workspace}/publish", hasRequestId: true, isStream: false },
  ReadConflict: { verb: "POST", path: "/conflicts/read", hasRequestId: false, isStream: true },
  ReadFiles: { verb: "POST", path: "/workspaces/{workspace}/read", hasRequestId: false, isStream: false },
  RecordStep: { verb: "POST", path: "/episodes/{name}/steps", hasRequestId: true, isStream: false },
  RedoOperation: { verb: "POST", path: "/operations/redo", hasRequestId: true, isStream: false },
  RejectReview: { verb: "POST", path: "/reviews/{name}/reject", hasRequestId: true, isStream: false },
  ReleaseEpisode: { verb: "POST", path: "/episodes/{name}/release", hasRequestId: true, isStream: false },
  ReleaseQueueEntry: { verb: "POST", path: "/queue/{name}/release", hasRequestId: true, isStream: false },
  RemoveFile: { verb: "POST", path: "/workspaces/{workspace}/remove", hasRequestId: true, isStream: false },
  RenameFile: { verb: "POST", path: "/workspaces/{workspace}/rename-file", hasRequestId: true, isStream: false },
  RenameWorkspace: { verb: "POST", path: "/workspaces/{name}/rename", hasRequestId: true, isStream: false },
  ReplayDelivery: { verb: "POST", path: "/webhooks/{name}/deliveries/{number}/replay", hasRequestId: false, isStream: false },
  ResizeTerminal: { verb: "POST", path: "/sandboxes/{sandbox_id}/pty/{pty_id}/resize", hasRequestId: false, isStream: false },
  ResolveConflicts: { verb: "POST", path: "/workspaces/{workspace}/conflicts/resolve", hasRequestId: true, isStream: false },
  RestoreWorkspace: { verb: "POST", path: "/workspaces/{name}/restore", hasRequestId: true, isStream: false },
  ResumeSandbox: { verb: "POST", path: "/sandboxes/{id}/resume", hasRequestId: false, isStream: false },
  RevokeKey: { verb: "DELETE", path: "/keys/{name}", hasRequestId: false, isStream: false },
  RunCommand: { verb: "POST", path: "/sandboxes/{sandbox_id}/process/run", hasRequestId: false, isStream: false },
  RunOnFork: { verb: "POST", path: "/sandboxes/run", hasRequestId: false, isStream: true },
  SchedulePublishing: { verb: "POST", path: "/workspaces/{workspace}/schedule", hasRequestId: true, isStream: false },
  SearchFiles: { verb: "GET", path: "/search", hasRequestId: false, isStream: true },
  SetAttributes: { verb: "PATCH", path: "/workspaces/{workspace}/attributes", hasRequestId: true, isStream: false },
  SetLabel: { verb: "PUT", path: "/labels/{label_id}", hasRequestId: true, isStream: false },
  SetPolicy: { verb: "PUT", path: "/policy", hasRequestId: true, isStream: false },
  SetSandboxTimeout: { verb: "POST", path: "/sandboxes/{id}/timeout", hasRequestId: false, isStream: false },
  SetState: { verb: "PUT", path: "/workspaces/{workspace}/state/{key}", hasRequestId: true, isStream: false },
  StatFile: { verb: "GET", path: "/workspaces/{workspace}/stat", hasRequestId: false, isStream: false },
  StatFiles: { verb: "POST", path: "/workspaces/{workspace}/stat", hasRequestId: false, isStream: false },
  StreamCommand: { verb: "POST", path: "/sandboxes/{sandbox_id}/process/stream", hasRequestId: false, isStream: true },
  SubmitWorkspace: { verb: "POST", path: "/workspaces/{workspace}/submit", hasRequestId: true, isStream: true },
  Subscribe: { verb: "GET", path: "/events", hasRequestId: false, isStream: true },
  TakeReview: { verb: "POST", path: "/reviews/{name}/take", hasRequestId: true, isStream: false },
  TestWebhook: { verb: "POST", path: "/webhooks/{name}/test", hasRequestId: false, isStream: false },
  UndeleteProject: { verb: "POST", path: "/projects/{name}/undelete", hasRequestId: false, isStream: false },
  UndeleteWorkspace: { verb: "POST", path: "/workspaces/{name}/undelete", hasRequestId: true, isStream: false },
  UndoOperation: { verb: "POST", path: "/operations/undo", hasRequestId: true, isStream: false },
  UnfollowSource: { verb: "POST", path: "/workspaces/{workspace}/unfollow", hasRequestId: true, isStream: false },
  UpdateFollower: { verb: "POST", path: "/workspaces/{workspace}/update", hasRequestId: true, isStream: false },
  UpdateSteps: { verb: "PATCH", path: "/episodes/{name}/steps", hasRequestId: true, isStream: false },
  UpdateWorkspace: { verb: "PATCH", path: "/workspaces/{name}", hasRequestId: true, isStream: false },
  VerifyStore: { verb: "POST", path: "/store/verify", hasRequestId: true, isStream: true },
  WatchFiles: { verb: "GET", path: "/workspaces/{workspace}/watch", hasRequestId: false, isStream: true },
  WatchOperations: { verb: "GET", path: "/operations/watch", hasRequestId: false, isStream: true },
  WatchSandboxes: { verb: "GET", path: "/sandboxes/events", hasRequestId: false, isStream: true },
  WithdrawQueueEntry: { verb: "DELETE", path: "/queue/{name}", hasRequestId: true, isStream: false },
  WriteCommand: { verb: "POST", path: "/sandboxes/{sandbox_id}/process/{command_id}/input", hasRequestId: false, isStream: false },
  WriteTerminal: { verb: "POST", path: "/sandboxes/{sandbox_id}/pty/{pty_id}/input", hasRequestId: false, isStream: false },
} as const;
