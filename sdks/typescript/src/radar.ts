/** The conflict radar: open workspaces that change the same files, while agents still work in them. */
import { type Overlap, overlap, workspaceName } from "./models.js";
import { escapePath } from "./text.js";
import type { CallOptions, Transport } from "./transport.js";

const PAGE_SIZE = 1000;

/** Options of the radar. */
export interface RadarOptions extends CallOptions {
  /** Only overlaps of this workspace. */
  workspace?: string | { readonly name: string };
  /** Only paths that start so. */
  path?: string;
  /** Leave out lines, keys and trial merges, which need contents. */
  pathsOnly?: boolean;
}

/** Overlaps of open workspaces, as `client.radar`. */
export class Radar {
  constructor(private readonly transport: Transport) {}

  /** Yields the paths that two or more open workspaces have changed, by path. */
  async *list(options: RadarOptions = {}): AsyncGenerator<Overlap, void, undefined> {
    const { workspace, path = "", pathsOnly } = options;
    const name = typeof workspace === "object" ? workspace.name : workspace;
    const query = { workspace: workspaceName(name), pathPrefix: escapePath(path), pathsOnly, pageSize: PAGE_SIZE };
    for await (const page of this.transport.pages("GetRadar", { query }, options)) {
      yield* (page.overlaps ?? []).map(overlap);
    }
  }
}
