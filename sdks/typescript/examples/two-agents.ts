/** Two agents change one file in forks; their work is merged, and a person decides the conflict. */
import { Amalgam, edits } from "../src/index.js";

await using client = new Amalgam();
const main = await client.workspaces.create(`two-agents-${crypto.randomUUID().slice(0, 8)}`);
await main.commitEdits([edits.write("greet.py", "def greet():\n    return 'hi'\n")], { message: "begin" });

const [ann, bob] = await main.fork({ names: [`${main.name}-ann`, `${main.name}-bob`] });
if (!ann || !bob) throw new Error("a fork is missing");
await Promise.all([
  ann.commitEdits([edits.replace("greet.py", "'hi'", "'hello'"), edits.write("ann.md", "by Ann\n")], { message: "politer" }),
  bob.commitEdits([edits.replace("greet.py", "'hi'", "'hey'"), edits.write("bob.md", "by Bob\n")], { message: "shorter" }),
]);

await main.merge(ann);
const merge = await main.merge(bob);
for (const conflict of merge.conflicts) {
  console.log(`${conflict.path}: ${conflict.kind}; theirs is taken`);
  conflict.resolve("theirs");
}
await merge.apply();
console.log(await main.files.readText("greet.py"));
for await (const snapshot of main.log()) console.log(snapshot.id.slice(0, 12), snapshot.author, snapshot.message);
