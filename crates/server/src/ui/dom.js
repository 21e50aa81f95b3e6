// Making nodes.

/** An element with properties and children; strings become text. */
export function element(tag, properties = {}, children = []) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

export function svg(tag, attributes = {}) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

export function button(label, action) {
  const node = element("button", { type: "button", className: "quiet" }, [label]);
  node.addEventListener("click", action);
  return node;
}

/** A button that copies what `text` returns, and says so. */
export function copyButton(text) {
  const node = button("Copy", async () => {
    node.textContent = (await copy(text())) ? "Copied" : "Cannot copy";
    setTimeout(() => (node.textContent = "Copy"), 1500);
  });
  return node;
}

/** Browsers have a clipboard for pages only where the connection is secure or local; elsewhere the old way works. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const before = document.activeElement;
    const area = element("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    before?.focus();
    return copied;
  }
}

/** Says something to those who listen instead of looking. */
export function say(text) {
  document.getElementById("said").textContent = text;
}
