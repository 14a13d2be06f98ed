/** The policy of a project: the permissions of agents. */
import type * as api from "../generated/api.js";
import { unescape } from "../text.js";
import { type Operation, operation } from "./service.js";

export type PolicyLevel = "none" | "R" | "RA" | "RW-" | "RW";

/** A policy as it is now. */
export interface Policy {
  /** In TOML; empty without a policy, which permits everything. */
  readonly text: string;
  /** The operation that made it so. */
  readonly operation: Operation | undefined;
}

/** The result of replacing a policy. */
export interface PolicySet {
  /** Whether the policy differs from the one before. */
  readonly isChanged: boolean;
  /** The operation; nothing for a dry run, and if nothing changed. */
  readonly operation: Operation | undefined;
  /** Ways round the policy that it cannot prevent. */
  readonly warnings: readonly string[];
}

/** An error in the text of a policy. */
export interface PolicyComplaint {
  /** From 1. */
  readonly line: number;
  /** The byte in the line, from 1. */
  readonly column: number;
  readonly message: string;
}

/** The permissions of an agent at a path, and the rule that gives them. */
export interface Permission {
  readonly agent: string;
  readonly path: string;
  readonly level: PolicyLevel;
  /** Of `read`, `add`, `change`, `remove`. */
  readonly acts: readonly string[];
  /** The line of the rule that decided; 0 for the policy's default, and if there is no policy. */
  readonly line: number;
  /** The patterns of that rule. */
  readonly patterns: readonly string[];
  readonly hasPolicy: boolean;
  /** Whether the agent may decide reviews and conflicts. */
  readonly isReviewer: boolean;
}

export function optionalOperation(value: api.Operation | null | undefined): Operation | undefined {
  return value ? operation(value) : undefined;
}

export function permission(value: api.ExplainPolicyResponse): Permission {
  return {
    agent: value.agent ?? "",
    path: unescape(value.path ?? ""),
    level: (value.level ?? "none") as PolicyLevel,
    acts: value.acts ?? [],
    line: value.line ?? 0,
    patterns: value.patterns ?? [],
    hasPolicy: value.hasPolicy ?? false,
    isReviewer: value.reviewer ?? false,
  };
}
