// The parts of the page that need no browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { events } from "../../crates/server/src/ui/api.js";
import { blocks } from "../../crates/server/src/ui/markdown.js";
import { SECTIONS, format, parse } from "../../crates/server/src/ui/metrics.js";

async function eventsOf(pieces) {
  async function* bytes() {
    yield* pieces;
  }
  const found = [];
  for await (const event of events(bytes())) found.push(event);
  return found;
}

test("events come out the same however the bytes are cut", async () => {
  const text = 'data: {"a": "é😀"}\n\n: comment\r\ndata:two\r\ndata: lines\r\n\r\nevent: x\n\ndata: [DONE]\n\n';
  const bytes = new TextEncoder().encode(text);
  const wanted = ['{"a": "é😀"}', "two\nlines", "[DONE]"];
  for (let at = 0; at <= bytes.length; at += 1) {
    assert.deepEqual(await eventsOf([bytes.slice(0, at), bytes.slice(at)]), wanted, `cut at ${at}`);
  }
  assert.deepEqual(await eventsOf([...bytes].map((byte) => Uint8Array.of(byte))), wanted);
  assert.deepEqual(await eventsOf([new TextEncoder().encode("data: unended")]), []);
});

test("text falls into blocks", () => {
  const kinds = (text) => blocks(text).map(({ kind, lines }) => [kind, lines.join("|")]);
  assert.deepEqual(kinds("a\nb\n\n# c\n---\n> q\n> r\ntext"), [
    ["paragraph", "a|b"],
    ["heading", "c"],
    ["rule", ""],
    ["quote", "q|r"],
    ["paragraph", "text"],
  ]);
  assert.deepEqual(kinds("1. a\n   ```py\n   x = 1\n     y\n   ```\n2. b\n   c\n\n3. d\n\ne"), [
    ["list", "1. a"],
    ["code", "x = 1|  y"],
    ["list", "2. b|   c||3. d"],
    ["paragraph", "e"],
  ]);
  // What is not finished yet is shown as far as it goes.
  assert.deepEqual(kinds("```\ncode\n\n# still"), [["code", "code||# still"]]);
  assert.deepEqual(kinds("````\n```\n````\nx"), [["code", "```"], ["paragraph", "x"]]);
  assert.deepEqual(kinds(""), []);
});

test("figures are differences of counters, and unknown where these start anew", () => {
  const sample = (seconds, text) => ({ seconds, values: parse(text) });
  const before = sample(10, "# HELP x y\nforetoken_generation_tokens_total 100.0\nforetoken_step_rows_count 5\n");
  const now = sample(12, 'a{b="c"} 7\nforetoken_generation_tokens_total 160.0\nforetoken_step_rows_count 5\n# EOF\n');
  assert.equal(now.values.size, 2);
  const figure = (label) => SECTIONS.flatMap(({ figures }) => figures).find((figure) => figure.label === label);
  assert.equal(figure("written").value(now, before), 30);
  assert.equal(figure("written").value(before, now), null);
  assert.equal(figure("written").value(now, null), null);
  assert.equal(figure("rows").value(now, before), null);
  const drafts = (accepted, decodes) =>
    `foretoken_accepted_tokens_total ${accepted}\nforetoken_decodes_total ${decodes}\n`;
  const tau = figure("tokens of a request a step");
  assert.equal(tau.value(sample(12, drafts(60, 20)), sample(10, drafts(0, 0))), 4);
  assert.equal(tau.value(sample(12, drafts(60, 20)), sample(10, drafts(60, 20))), null);
  assert.deepEqual([null, 0, 1.234, 12.34, 1234.5].map((n) => format(n)), ["–", "0", "1.23", "12.3", "1,235"]);
});
