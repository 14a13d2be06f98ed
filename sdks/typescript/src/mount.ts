/** Workspaces of the local store as directories. */
import { resolve } from "node:path";

import { NotPossibleError } from "./errors.js";
import type { Transport } from "./transport.js";

/** How a workspace becomes a directory; `auto` takes the first that this machine has. */
export type MountBackend = "auto" | "fuse" | "nfs" | "checkout";

/** A mounted workspace. `await using` unmounts it at the end of a block; nothing is deleted. */
export class Mount implements AsyncDisposable {
  private constructor(
    private readonly transport: Transport,
    /** The directory. */
    readonly path: string,
  ) {}

  /** Mounts a workspace. */
  static async create(transport: Transport, workspace: string, path: string, backend: MountBackend): Promise<Mount> {
    const { store, options } = transport;
    if (!store) {
      throw new NotPossibleError(
        `the server ${options.url} may be on another host, and a mount needs its store on this one; on the server, ` +
          `\`amalgam export nfs ${workspace}\` prints the command that mounts it over NFS`,
      );
    }
    const place = resolve(path);
    await store.run("mount", workspace, place, ...(backend === "auto" ? [] : [`--backend=${backend}`]));
    return new Mount(transport, place);
  }

  /** Unmounts it. Changes are those of the live tree. */
  async unmount(): Promise<void> {
    await this.transport.store?.run("umount", this.path);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.unmount();
  }
}
