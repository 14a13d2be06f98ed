/** Attempts in forks of a workspace, of which the best is kept. */
import { ExploreError } from "./errors.js";
import type { Snapshot } from "./models.js";
import type { Sandbox, SandboxOptions } from "./sandboxes.js";
import type { CallOptions } from "./transport.js";
import type { Workspace } from "./workspace.js";

const DROPS_AT_ONCE = 8;

/** One attempt of an exploration. */
export interface Attempt<R> {
  readonly workspace: Workspace;
  result?: R;
  /** Negative infinity without a result. */
  score: number;
  /** The state after the attempt. */
  snapshot?: Snapshot;
  /** Why it has no score. */
  error?: unknown;
  /** Of the best attempt: the other ones. Their workspaces are deleted, and can be undeleted. */
  others: Attempt<R>[];
}

/** What all explorations have. */
interface CommonOptions<R> extends CallOptions {
  /** How many forks. */
  count: number;
  /** Judges a fork and the result of `run`; the highest score is the best. */
  score: (fork: Workspace, result: R) => Promise<number> | number;
  /** How many attempts run at once; all of them if unset. */
  parallel?: number;
  /** Keep the other forks, too. */
  keepAll?: boolean;
}

/** Options of an exploration. */
export interface ExploreOptions<R> extends CommonOptions<R> {
  /** Works in a fork, and returns any result. Its uncommitted changes are committed after it. */
  run: (fork: Workspace) => Promise<R> | R;
  sandbox?: undefined;
}

/** Options of an exploration in sandboxes. */
export interface SandboxExploreOptions<R> extends CommonOptions<R> {
  /** Works in a fork by its sandbox, and returns any result. The changes are committed after it. */
  run: (fork: Workspace, sandbox: Sandbox) => Promise<R> | R;
  /** Starts a sandbox for each fork, which ends after `run`: a template, or the options of `Workspace.sandbox`. */
  sandbox: string | (SandboxOptions & { image?: string });
}

/** Runs an attempt in a fork, and in a sandbox of it if one is asked for. */
async function work<R>(fork: Workspace, options: ExploreOptions<R> | SandboxExploreOptions<R>): Promise<R> {
  if (options.sandbox === undefined) return options.run(fork);
  const given = typeof options.sandbox === "string" ? { image: options.sandbox } : options.sandbox;
  const sandbox = await fork.sandbox(given);
  try {
    return await options.run(fork, sandbox);
  } finally {
    // Its end commits what its commands changed.
    await sandbox[Symbol.asyncDispose]();
  }
}

/** Forks a workspace, runs a function in each fork, and keeps the fork with the highest score. */
export async function explore<R>(
  workspace: Workspace,
  options: ExploreOptions<R> | SandboxExploreOptions<R>,
): Promise<Attempt<R>> {
  const calling = { signal: options.signal, timeoutMs: options.timeoutMs };
  const forks = await workspace.fork({ ...calling, count: options.count });
  const attempts = await runEach(forks, options.parallel ?? options.count, async (fork) => {
    const tried: Attempt<R> = { workspace: fork, score: Number.NEGATIVE_INFINITY, others: [] };
    try {
      options.signal?.throwIfAborted();
      tried.result = await work(fork, options);
      const commit = await fork.commit("attempt", { ...calling, kind: "step" });
      if (commit.snapshot) tried.snapshot = commit.snapshot;
      const score = await options.score(fork, tried.result);
      if (Number.isNaN(score)) throw new RangeError("the score is not a number");
      tried.score = score;
    } catch (error) {
      tried.error = error ?? new Error("the attempt failed without an error");
    }
    return tried;
  });
  const scored = attempts.filter((tried) => tried.error === undefined);
  const best = scored.reduce<Attempt<R> | undefined>((one, other) => (one && one.score >= other.score ? one : other), undefined);
  const losers = attempts.filter((tried) => tried !== best);
  if (!options.keepAll) {
    await runEach(losers, DROPS_AT_ONCE, async (tried) => {
      // Without the caller's signal: an aborted exploration removes its forks, too.
      await tried.workspace.delete().catch((error: unknown) => (tried.error ??= error));
    });
  }
  options.signal?.throwIfAborted();
  if (!best) {
    const first = attempts[0]?.error;
    const message = `all ${options.count} attempts failed; the first one: ${String(first)}`;
    throw new ExploreError(message, attempts, { cause: first });
  }
  best.others = losers;
  return best;
}

/** Calls a function for each argument, at most so many at once, and returns the results in order. */
async function runEach<A, T>(list: readonly A[], parallel: number, run: (one: A) => Promise<T>): Promise<T[]> {
  const results = new Array<T>(list.length);
  const waiting = list.entries();
  const work = async (): Promise<void> => {
    // All workers take from one iterator.
    for (const [index, one] of waiting) results[index] = await run(one);
  };
  await Promise.all(Array.from({ length: Math.max(1, Math.min(parallel, list.length)) }, work));
  return results;
}
