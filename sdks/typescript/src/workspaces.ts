/** All workspaces of a project. */
import { type Revision, revisionText, workspaceInfo } from "./models.js";
import type { CallOptions, ChangeOptions, Transport } from "./transport.js";
import { Workspace } from "./workspace.js";

const PAGE_SIZE = 1000;

/** The workspaces of a project, as `client.workspaces`. */
export class Workspaces {
  constructor(private readonly transport: Transport) {}

  /**
   * Makes a workspace. It begins at the snapshot `base`, or at the head of the workspace `base`; without it, empty.
   * Throws `AlreadyExistsError` if there is a workspace of this name, which may hold slashes.
   */
  async create(
    name: string,
    options: ChangeOptions & { base?: Revision | Workspace; agent?: string } = {},
  ): Promise<Workspace> {
    const { base, agent = "" } = options;
    const from = base instanceof Workspace ? `${base.name}@` : revisionText(base);
    const answer = await this.transport.call("CreateWorkspace", { body: { workspaceId: name, from, agent } }, options);
    return new Workspace(this.transport, workspaceInfo(answer.workspace));
  }

  /** Returns a workspace. Throws `NotFoundError` if there is none of this name. */
  async get(name: string, options: CallOptions = {}): Promise<Workspace> {
    const answer = await this.transport.call("GetWorkspace", { path: { name } }, options);
    return new Workspace(this.transport, workspaceInfo(answer.workspace));
  }

  /** Yields the workspaces by name; with a prefix only those whose names start so. */
  async *list(prefix = "", options: CallOptions = {}): AsyncGenerator<Workspace, void, undefined> {
    const query = { prefix, pageSize: PAGE_SIZE };
    for await (const page of this.transport.pages("ListWorkspaces", { query }, options)) {
      for (const found of page.workspaces ?? []) yield new Workspace(this.transport, workspaceInfo(found));
    }
  }

  /** Deletes a workspace. `undelete` brings it back until it is collected. */
  async delete(name: string, options: ChangeOptions & { etag?: string } = {}): Promise<void> {
    await this.transport.call("DeleteWorkspace", { path: { name }, query: { etag: options.etag } }, options);
  }

  /** Brings a deleted workspace back. */
  async undelete(name: string, options: ChangeOptions = {}): Promise<Workspace> {
    const answer = await this.transport.call("UndeleteWorkspace", { path: { name }, body: {} }, options);
    return new Workspace(this.transport, workspaceInfo(answer.workspace));
  }
}
