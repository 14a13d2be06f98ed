/** Sandboxes, their commands and their terminals. */
import type * as api from "../generated/api.js";
import { short, timeOf } from "../text.js";
import { type MergeResult, mergeResult } from "./service.js";
import { type Change, change } from "./tree.js";

export type SandboxState = "starting" | "running" | "stopping" | "stopped" | "error";

/** A limit of a sandbox. */
export interface EnforcedLimit {
  /** `cpu`, `memory`, `pids`, `disk` or `landlock`. */
  readonly limit: string;
  readonly value: string;
  /** For example `cgroup` or `rlimit`; `none` if nothing enforces it. */
  readonly enforcedBy: string;
}

/** A sandbox as the server described it. */
export interface SandboxInfo {
  readonly id: string;
  readonly name: string;
  readonly state: SandboxState;
  readonly template: string;
  /** The name of the workspace that its commands see at `/workspace`. */
  readonly workspace: string;
  readonly createdAt: Date | undefined;
  /** When it is ended, and its workspace committed and kept. */
  readonly expiresAt: Date | undefined;
  readonly project: string;
  readonly runtime: string;
  readonly network: string;
  readonly isReadOnly: boolean;
  readonly limits: readonly EnforcedLimit[];
  /** How the sandbox sees its workspace: `fuse` or `checkout`. */
  readonly provider: string;
  /** What a fork of the running sandbox costs, in words. */
  readonly forkCost: string;
  /** Why it is in the state `error` or `stopped`. */
  readonly reason: string;
  /** The hosts that it may reach, by the proxy of the server. */
  readonly allowedHosts: readonly string[];
  /** The hidden workspace with its home and `/tmp`, which fork with the sandbox. */
  readonly home: string;
}

/** The result of deleting several sandboxes. */
export interface BatchDeleted {
  readonly succeeded: readonly string[];
  /** The sandboxes that were not deleted, each with the reason. */
  readonly failed: readonly { readonly id: string; readonly error: string }[];
}

/** The URL of a port of a sandbox. Whoever has it reaches the port, without a key. */
export interface PortUrl {
  /** With a slash at its end. */
  readonly url: string;
  /** What stands behind `http://` or `https://` in the URL. It has a path, unless the server has a domain for ports. */
  readonly host: string;
  readonly expiresAt: Date | undefined;
}

/** The log of a sandbox. */
export interface SandboxLogs {
  readonly text: string;
  /** Whether there are more lines. */
  readonly isTruncated: boolean;
}

/** The resources that a sandbox uses. */
export interface SandboxStats {
  /** 100 is one CPU. */
  readonly cpuPercent: number;
  readonly memoryBytes: number;
  readonly memoryLimitBytes: number;
  readonly diskBytes: number;
  readonly diskLimitBytes: number;
  readonly receivedBytes: number;
  readonly sentBytes: number;
  readonly processes: number;
  readonly updatedAt: Date | undefined;
}

/** A root file system from which sandboxes are started. */
export interface Template {
  readonly name: string;
  readonly description: string;
  readonly tags: readonly string[];
}

/** The result of a command that has ended. */
export interface CommandResult {
  readonly commandId: string;
  /** 128 and the signal's number if a signal ended the command. */
  readonly exitCode: number;
  /** Bytes that are not UTF-8 are replaced. */
  readonly stdout: string;
  readonly stderr: string;
  /** Whether there was more output. */
  readonly isTruncated: boolean;
}

/** An event of a command. */
export interface CommandEvent {
  readonly type: "started" | "stdout" | "stderr" | "exit";
  readonly commandId: string;
  /** Output as text; bytes that are not UTF-8 are replaced. */
  readonly data: string;
  /** Output as it is. */
  readonly output: Uint8Array;
  /** Of `exit`. */
  readonly exitCode: number;
  /** Of `exit`: not empty if the command was killed because its time was up. */
  readonly message: string;
  /** The offset at which `commands.get(id).events({ offset })` goes on after this event. */
  readonly nextOffset: number;
  /** Of `exit`: there was more output. Of output: the bytes before it are not kept any more. */
  readonly isTruncated: boolean;
}

/** A command of a sandbox that runs or has ended. */
export interface CommandInfo {
  readonly id: string;
  readonly command: string;
  readonly isRunning: boolean;
  readonly exitCode: number;
  readonly outputBytes: number;
  readonly startedAt: Date | undefined;
}

export function sandboxInfo(value: api.Sandbox): SandboxInfo {
  return {
    id: value.id ?? "",
    name: value.name ?? "",
    state: (value.state ?? "error") as SandboxState,
    template: value.template ?? "",
    workspace: short(value.workspace),
    createdAt: timeOf(value.createdAt),
    expiresAt: timeOf(value.expiresAt),
    project: value.project ?? "",
    runtime: value.runtime ?? "",
    network: value.network ?? "",
    isReadOnly: value.readOnly ?? false,
    limits: (value.limits ?? []).map(({ limit = "", value: amount = "", enforcedBy = "" }) => ({
      limit,
      value: amount,
      enforcedBy,
    })),
    provider: value.provider ?? "",
    forkCost: value.forkCost ?? "",
    reason: value.reason ?? "",
    allowedHosts: value.allowedHosts ?? [],
    home: short(value.home),
  };
}

export function batchDeleted(value: api.BatchDeleteSandboxesResponse): BatchDeleted {
  const failed = (value.failed ?? []).map(({ id = "", error = "" }) => ({ id, error }));
  return { succeeded: value.succeeded ?? [], failed };
}

export function sandboxStats(value: api.GetSandboxStatsResponse): SandboxStats {
  return {
    cpuPercent: value.cpu?.usage ?? 0,
    memoryBytes: value.memory?.usage ?? 0,
    memoryLimitBytes: value.memory?.limit ?? 0,
    diskBytes: value.disk?.usage ?? 0,
    diskLimitBytes: value.disk?.limit ?? 0,
    receivedBytes: value.network?.rxBytes ?? 0,
    sentBytes: value.network?.txBytes ?? 0,
    processes: value.processes ?? 0,
    updatedAt: timeOf(value.updatedAt),
  };
}

export function commandResult(value: api.RunCommandResponse): CommandResult {
  return {
    commandId: value.commandId ?? "",
    exitCode: value.exitCode ?? 0,
    stdout: value.stdout ?? "",
    stderr: value.stderr ?? "",
    isTruncated: value.truncated ?? false,
  };
}

export function commandInfo(value: api.SandboxCommand): CommandInfo {
  return {
    id: value.commandId ?? "",
    command: value.command ?? "",
    isRunning: value.running ?? false,
    exitCode: value.exitCode ?? 0,
    outputBytes: value.outputBytes ?? 0,
    startedAt: timeOf(value.startedAt),
  };
}

/** The result of a command that was run on a fork of a workspace. */
export interface ForkRun {
  readonly exitCode: number;
  readonly stdout: string;
  readonly stderr: string;
  /** The name of the fork. */
  readonly workspace: string;
  /** The id of the fork's head after the command. */
  readonly snapshot: string;
  /** What the command changed, at most 1,000 paths. */
  readonly changes: readonly Change[];
  /** How many more there are. */
  readonly changesMore: number;
  /** The merge; nothing if there was none. */
  readonly merge: MergeResult | undefined;
  /** Whether the changes are in the workspace that was forked. */
  readonly isMerged: boolean;
  /** Whether the fork still exists: it was to be kept, or its merge waits for a decision. */
  readonly isKept: boolean;
  /** Whether the command was killed because its time was up. */
  readonly isTimedOut: boolean;
}

/** Reads a `RunOnForkResult`. */
export function forkRun(value: api.RunOnForkResult, stdout: string, stderr: string): ForkRun {
  return {
    exitCode: value.exitCode ?? 0,
    stdout,
    stderr,
    workspace: short(value.workspace ?? ""),
    snapshot: short(value.snapshot ?? ""),
    changes: (value.changes ?? []).map(change),
    changesMore: value.changesMore ?? 0,
    merge: value.merge ? mergeResult(value.merge) : undefined,
    isMerged: value.merged ?? false,
    isKept: value.kept ?? false,
    isTimedOut: value.timedOut ?? false,
  };
}
