/** All workspaces of a project. */
import { InvalidArgumentError } from "./errors.js";
import { type Revision, revisionText, workspaceInfo } from "./models.js";
import { PUSH_BYTES_MIN, pushDirectory } from "./push.js";
import { refuseSecrets, upload, walk } from "./source.js";
import type { CallOptions, ChangeOptions, Transport } from "./transport.js";
import { Workspace } from "./workspace.js";

const PAGE_SIZE = 1000;

/** Options of a new workspace. */
export interface CreateWorkspaceOptions extends ChangeOptions {
  /** The snapshot that it begins at, or a workspace, whose head it begins at; without it, empty. */
  base?: Revision | Workspace;
  /** The agent that works in it. */
  agent?: string;
  /**
   * A directory of this machine whose files are its first snapshot. The directory is not attached: later changes on either
   * side stay apart. The server gets only what it lacks, if the `amalgam` program is installed; the history then has the
   * earlier uploads of the same directory, too.
   */
  source?: string;
  /** Names and paths of the source that are left out, as globs. */
  exclude?: readonly string[];
  /** Send files of the source although they look like secrets. */
  allowSecrets?: boolean;
}

/** The workspaces of a project, as `client.workspaces`. */
export class Workspaces {
  constructor(private readonly transport: Transport) {}

  /**
   * Makes a workspace: empty, from `base`, or with the files of `source`. Throws `AlreadyExistsError` if there is a
   * workspace of this name, which may hold slashes, and `SecretsFoundError` if files of the source look like secrets.
   */
  async create(name: string, options: CreateWorkspaceOptions = {}): Promise<Workspace> {
    if (options.source !== undefined) return this.createFrom(options.source, name, options);
    const { base } = options;
    return this.make(name, base instanceof Workspace ? `${base.name}@` : revisionText(base), options);
  }

  private async make(name: string, from: string, options: CreateWorkspaceOptions): Promise<Workspace> {
    const body = { workspaceId: name, from, agent: options.agent ?? "" };
    const answer = await this.transport.call("CreateWorkspace", { body }, options);
    return new Workspace(this.transport, workspaceInfo(answer.workspace));
  }

  private async createFrom(source: string, name: string, options: CreateWorkspaceOptions): Promise<Workspace> {
    if (options.base !== undefined) throw new InvalidArgumentError("create takes either base or source");
    const { exclude = [], allowSecrets = false, signal } = options;
    const entries = await walk(source, exclude);
    const isLocal = this.transport.store !== undefined;
    if (!allowSecrets && !isLocal) await refuseSecrets(source, entries);
    // The program leaves out what this file says; a client sends all files.
    const hasIgnoreFile = entries.some(({ path }) => /(^|\/)\.amalgamignore$/.test(path));
    const bytes = entries.reduce((sum, { size }) => sum + size, 0);
    const pushed =
      bytes >= PUSH_BYTES_MIN && !isLocal && !hasIgnoreFile
        ? await pushDirectory(source, exclude, this.transport.options, allowSecrets, signal)
        : undefined;
    if (!pushed) {
      const workspace = await this.make(name, "", options);
      await upload(workspace, source, entries, options);
      return workspace;
    }
    try {
      return await this.make(name, pushed.snapshot, options);
    } finally {
      await this.delete(pushed.workspace);
    }
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
