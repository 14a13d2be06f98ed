/** Merges of one workspace into another, with conflicts that the caller resolves before anything changes. */
import * as edits from "./edits.js";
import { MergeConflictError, NotFoundError, NotPossibleError } from "./errors.js";
import { type MergeResult, type MergedPath, mergeResult } from "./models.js";
import type { CallOptions, Transport } from "./transport.js";
import type { Workspace } from "./workspace.js";

/** The version of the target, or of the merged workspace. */
export type MergeSide = "ours" | "theirs";

/**
 * What a merge with conflicts does. `review`: change nothing, so that the caller resolves `merge.conflicts` and calls
 * `merge.apply()`. `throw`: throw `MergeConflictError`. `ours` and `theirs`: take this side of each conflict. `keep`:
 * merge, and store the conflicts in the tree.
 */
export type OnConflict = "review" | "throw" | "keep" | MergeSide;

const CONTENT_KINDS: ReadonlySet<string> = new Set(["contents", "both added"]);

/** A path that a merge could not decide. */
export class Conflict {
  readonly path: string;
  /** For example `contents` or `changed and removed`. */
  readonly kind: string;
  readonly others: readonly string[];
  /** The side that `resolve` chose. */
  side: MergeSide | undefined;

  constructor(
    private readonly merge: Merge,
    found: MergedPath,
  ) {
    this.path = found.path;
    this.kind = found.result;
    this.others = found.others;
  }

  /** Chooses the version of the target (`ours`) or of the merged workspace (`theirs`). `apply` uses it. */
  resolve(side: MergeSide): void {
    this.side = side;
  }

  /** Returns the version of a side; nothing if that side has no such file. */
  async read(side: MergeSide, options: CallOptions = {}): Promise<Uint8Array | undefined> {
    const workspace = side === "ours" ? this.merge.target : this.merge.source;
    try {
      return await workspace.files.read(this.path, { ...options, revision: `${workspace.name}@` });
    } catch (error) {
      if (error instanceof NotFoundError) return undefined;
      throw error;
    }
  }
}

/** A merge: done, or waiting for `apply` because it has conflicts. */
export class Merge {
  /** Whether the target has the changes now. */
  isApplied = false;
  /** The last answer of the server. */
  result: MergeResult = mergeResult(undefined);
  conflicts: Conflict[] = [];

  constructor(
    private readonly transport: Transport,
    readonly target: Workspace,
    readonly source: Workspace,
    private readonly message: string,
    private readonly fastForwardOnly: boolean,
  ) {}

  /** Merges, or finds the conflicts. */
  async start(onConflict: OnConflict, isDryRun: boolean, options: CallOptions): Promise<void> {
    if (onConflict === "keep" && !isDryRun) return this.send(false, [], options);
    await this.send(true, [], options);
    if (this.conflicts.length > 0 && onConflict === "throw") throw this.error(this.conflicts);
    if (onConflict === "ours" || onConflict === "theirs") {
      for (const conflict of this.conflicts) conflict.resolve(onConflict);
    } else if (this.conflicts.length > 0) {
      return;
    }
    if (!isDryRun) await this.apply(options);
  }

  /**
   * Merges with the chosen sides. Does nothing if the merge was done before. Throws `MergeConflictError`, and changes
   * nothing, while a conflict has no side.
   *
   * A conflict about the contents of a file is decided within the merge. Any other one, for example a file that one side
   * changed and the other removed, is decided by a second snapshot that follows the merge at once.
   */
  async apply(options: CallOptions = {}): Promise<MergeResult> {
    if (this.isApplied) return this.result;
    const chosen = this.conflicts;
    const open = chosen.filter((conflict) => conflict.side === undefined);
    if (open.length > 0) throw this.error(open);
    // The heads may have moved since, and with them the conflicts.
    await this.send(true, chosen, options);
    const sides = new Map(chosen.map((conflict) => [conflict.path, conflict.side]));
    const added = this.conflicts.filter((conflict) => !sides.has(conflict.path));
    if (added.length > 0) throw this.error(added);
    const left = this.conflicts;
    const changes = await Promise.all(
      left.map((conflict) => this.editFor(conflict, sides.get(conflict.path) ?? "ours", options)),
    );
    await this.send(false, chosen, options);
    if (changes.length > 0) {
      const message = `resolve ${left.map((conflict) => conflict.path).join(", ")}`;
      const expectedHead = this.result.head;
      await this.target.commitEdits(changes, { ...options, message, ...(expectedHead ? { expectedHead } : {}) });
    }
    this.conflicts = [];
    return this.result;
  }

  private async editFor(conflict: Conflict, side: MergeSide, options: CallOptions): Promise<edits.Edit> {
    const workspace = side === "ours" ? this.target : this.source;
    const reading = { ...options, revision: `${workspace.name}@` };
    const found = (await workspace.files.statMany([conflict.path], reading))[0];
    if (!found) return edits.remove(conflict.path, { recursive: true, missingOk: true });
    if (found.kind === "file") {
      return edits.write(conflict.path, await workspace.files.read(conflict.path, reading), { mode: found.mode });
    }
    if (found.kind === "symlink") return edits.symlink(conflict.path, found.linkTarget);
    const message = `${conflict.path}: a conflict of the kind \`${conflict.kind}\` cannot be resolved by a side`;
    throw new NotPossibleError(message);
  }

  private async send(isDryRun: boolean, chosen: readonly Conflict[], options: CallOptions): Promise<void> {
    const ways = chosen
      .filter((conflict) => CONTENT_KINDS.has(conflict.kind))
      .map((conflict) => ({ path: conflict.path.replace(/[*?[\]{}!\\]/g, "\\$&"), way: conflict.side ?? "ours" }));
    const body = {
      sources: [`workspaces/${this.source.name}`],
      dryRun: isDryRun,
      fastForwardOnly: this.fastForwardOnly,
      message: this.message,
      ...(ways.length > 0 ? { rules: { ways } } : {}),
    };
    const answer = await this.transport.call("MergeWorkspaces", { path: { target: this.target.name }, body }, options);
    this.result = mergeResult(answer.merge);
    this.conflicts = this.result.conflicts.map((found) => new Conflict(this, found));
    this.isApplied = !isDryRun && this.result.how !== "refused";
  }

  private error(conflicts: readonly Conflict[]): MergeConflictError {
    const paths = conflicts.map((conflict) => conflict.path);
    const more = paths.length > 5 ? ` and ${paths.length - 5} more` : "";
    const listed = paths.slice(0, 5).join(", ") + more;
    const message = `${this.source.name} conflicts with ${this.target.name}: ${listed}; nothing was merged`;
    return new MergeConflictError(message, { codeName: "CONFLICT", details: { paths } });
  }
}
