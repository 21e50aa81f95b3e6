// A small part of Markdown, as DOM nodes. A model's text only ever becomes text: there are no links, images or HTML.

import { element, copyButton } from "./dom.js";

const FENCE = /^(\s*)(`{3,}|~{3,})\s*([\w+#.-]*)/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^\s*>\s?/;

/** Cuts a text into blocks: `{ kind, lines }` and what else the kind has. An open fence lasts to the end. */
export function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  let at = 0;
  const takeWhile = (test) => {
    const from = at;
    while (at < lines.length && test(lines[at], at)) at += 1;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (fence) {
      const [, indent, marks, language] = fence;
      at += 1;
      const code = takeWhile((inside) => !isClosing(inside, marks));
      at += 1;
      found.push({ kind: "code", language, lines: code.map((inside) => dedent(inside, indent.length)) });
    } else if (line.trim() === "") {
      at += 1;
    } else if (heading) {
      at += 1;
      found.push({ kind: "heading", level: heading[1].length, lines: [heading[2]] });
    } else if (RULE.test(line)) {
      at += 1;
      found.push({ kind: "rule", lines: [] });
    } else if (ITEM.test(line)) {
      found.push({ kind: "list", lines: takeWhile((inside, index) => isOfList(lines, inside, index)) });
    } else if (QUOTE.test(line)) {
      found.push({ kind: "quote", lines: takeWhile((inside) => QUOTE.test(inside)).map((l) => l.replace(QUOTE, "")) });
    } else {
      found.push({ kind: "paragraph", lines: [line, ...((at += 1), takeWhile(isPlain))] });
    }
  }
  return found;
}

function isClosing(line, marks) {
  const text = line.trim();
  return text.length >= marks.length && text === marks[0].repeat(text.length);
}

function isOfList(lines, line, index) {
  if (FENCE.test(line)) return false;
  if (line.trim() !== "") return ITEM.test(line) || /^\s/.test(line);
  const next = lines[index + 1] ?? "";
  return ITEM.test(next) && !RULE.test(next);
}

function isPlain(line) {
  return line.trim() !== "" && ![FENCE, ITEM, HEADING, RULE, QUOTE].some((mark) => mark.test(line));
}

function dedent(line, spaces) {
  return line.slice(Math.min(spaces, line.length - line.trimStart().length));
}

/** Shows a text in `parent`. Blocks that are as they were keep their nodes, so that a growing text costs its end only. */
export function show(parent, text) {
  const wanted = blocks(text);
  const shown = [...parent.children];
  wanted.forEach((block, index) => {
    const source = JSON.stringify(block);
    if (shown[index]?.markdown === source) return;
    const node = render(block);
    node.markdown = source;
    if (shown[index]) shown[index].replaceWith(node);
    else parent.append(node);
  });
  shown.slice(wanted.length).forEach((node) => node.remove());
}

function render(block) {
  const text = block.lines.join("\n");
  switch (block.kind) {
    case "code":
      return element("figure", { className: "code" }, [
        element("figcaption", {}, [element("span", {}, [block.language || "text"]), copyButton(() => text)]),
        element("pre", { tabIndex: 0 }, [element("code", {}, [text])]),
      ]);
    case "heading":
      return element(`h${Math.min(block.level + 2, 6)}`, {}, inline(text));
    case "rule":
      return element("hr");
    case "quote":
      return element("blockquote", {}, inline(text));
    case "list":
      return list(block.lines.filter((line) => line.trim() !== ""));
    default:
      return element("p", {}, inline(text));
  }
}

/** A list of lines; what is indented deeper than its first line belongs to the item before it. */
function list(lines) {
  const [, indent, number] = ITEM.exec(lines[0]) ?? [null, "", undefined];
  const node = number === undefined ? element("ul") : element("ol", { start: Number(number) });
  let at = 0;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    const inner = [];
    const text = [item ? item[3] : lines[at].trim()];
    for (at += 1; at < lines.length && depth(lines[at]) > indent.length; at += 1) {
      if (inner.length || ITEM.test(lines[at])) inner.push(lines[at]);
      else text.push(lines[at].trim());
    }
    const children = inline(text.join("\n"));
    if (inner.length) children.push(list(inner));
    node.append(element("li", {}, children));
  }
  return node;
}

function depth(line) {
  return line.length - line.trimStart().length;
}

const MARKS = [["`", "code"], ["**", "strong"], ["*", "em"]];

/** Nodes of a line's text. A mark without its partner is text. */
function inline(text) {
  const nodes = [];
  let plain = "";
  let at = 0;
  const flush = () => {
    if (plain) nodes.push(plain);
    plain = "";
  };
  const unpaired = new Set();
  while (at < text.length) {
    const [mark, tag] = MARKS.find(([mark]) => text.startsWith(mark, at)) ?? [];
    const from = at + (mark?.length ?? 0);
    const end = mark && !unpaired.has(mark) ? text.indexOf(mark, from) : -1;
    if (mark && end < 0) unpaired.add(mark);
    if (end > from && (tag === "code" || isTight(text.slice(from, end)))) {
      flush();
      const inside = text.slice(from, end);
      nodes.push(element(tag, {}, tag === "code" ? [inside] : inline(inside)));
      at = end + mark.length;
    } else {
      plain += text.slice(at, mark ? from : at + 1);
      at = mark ? from : at + 1;
    }
  }
  flush();
  return nodes;
}

function isTight(text) {
  return text.trim() === text;
}
