// Removes what the compiler wrote, so that a file without a source is not packed.
import { rmSync } from "node:fs";

rmSync(new URL("../dist", import.meta.url), { recursive: true, force: true });
