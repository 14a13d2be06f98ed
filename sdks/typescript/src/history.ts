/** The history of files of a workspace. */
import { type BlamedLines, type Revision, type Version, blamedLines, revisionText, version } from "./models.js";
import { escapePath } from "./text.js";
import type { CallOptions, Transport } from "./transport.js";

/** The history of files, as `ws.history`. */
export class History {
  private readonly workspace: string;

  constructor(
    private readonly transport: Transport,
    workspace: string,
  ) {
    this.workspace = `workspaces/${workspace}`;
  }

  /** Returns which snapshot each line of a file comes from, as runs of lines. */
  async blame(path: string, options: CallOptions & { revision?: Revision } = {}): Promise<BlamedLines[]> {
    const query = { workspace: this.workspace, path: escapePath(path) };
    const input = { path: { revision: revisionText(options.revision ?? "@") }, query };
    return blamedLines(await this.transport.call("BlameFile", input, options));
  }

  /** Yields the snapshots that changed a path, newest first; with `follow` also those before renames. */
  async *versions(
    path: string,
    options: CallOptions & { revision?: Revision; follow?: boolean; limit?: number } = {},
  ): AsyncGenerator<Version, void, undefined> {
    const query = {
      workspace: this.workspace,
      path: escapePath(path),
      follow: options.follow,
      limit: options.limit,
    };
    const input = { path: { revision: revisionText(options.revision ?? "@") }, query };
    for await (const message of this.transport.messages("ListVersions", input, options)) yield version(message);
  }
}
