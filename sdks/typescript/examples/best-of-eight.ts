/** Eight attempts in parallel, each in a fork of its own; the best one is kept and merged. */
import { Amalgam } from "../src/index.js";

await using client = new Amalgam();
const ws = await client.workspaces.create(`best-of-eight-${crypto.randomUUID().slice(0, 8)}`);
await ws.files.write("guess.txt", "0\n");
await ws.commit("begin");

const best = await ws.explore({
  count: 8,
  run: async (fork) => {
    const guess = Number(fork.name.split("-").at(-1)) / 2;
    await fork.files.write("guess.txt", `${guess}\n`);
    return guess;
  },
  score: (_, guess) => -Math.abs(guess ** 2 - 2),
});
await ws.merge(best.workspace);
console.log(`kept ${best.result} with the score ${best.score.toFixed(3)}; guess.txt: ${await ws.files.readText("guess.txt")}`);
