"use strict";
// Texts are strangers': they enter the page as text nodes, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const PAGE = 100;
const app = document.getElementById("app");
const chosen = { outcome: "", node: "", verifier: "", cause: "", kind: "", text: "" };
let limit = PAGE;

function el(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  for (const child of children) {
    made.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return made;
}

// Characters that are not seen, or change the order of what is seen, are named.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\u{e0000}-\u{e007f}]/gu;
function visible(text) {
  return String(text).replace(HIDDEN, (c) => "\u27e8U+" + c.codePointAt(0).toString(16).toUpperCase() + "\u27e9");
}

// Spans count code points, as Python does.
function marked(text, spans) {
  const points = Array.from(text);
  const marks = new Uint8Array(points.length + 1);
  for (const [start, end] of spans) {
    for (let i = start; i < Math.min(Math.max(end, start + 1), points.length); i++) marks[i] = 1;
  }
  const into = el("pre", {});
  let start = 0;
  for (let i = 1; i <= points.length; i++) {
    if (i === points.length || marks[i] !== marks[start]) {
      const piece = visible(points.slice(start, i).join(""));
      into.append(marks[start] ? el("mark", {}, piece) : document.createTextNode(piece));
      start = i;
    }
  }
  return into;
}

const FIELDS = {
  outcome: (row) => [row.outcome],
  node: (row) => [row.node === null || row.node === undefined ? "(no name)" : row.node],
  verifier: (row) => row.by,
  cause: (row) => [row.cause],
  kind: (row) => row.findings.map((finding) => finding.kind),
};

function fits(row, without) {
  for (const [name, values] of Object.entries(FIELDS)) {
    if (name !== without && chosen[name] && !values(row).includes(chosen[name])) return false;
  }
  return !chosen.text || ((row.text || "") + "\n" + (row.prompt || "")).includes(chosen.text);
}

function select(name) {
  const counts = new Map();
  for (const row of data.rows) {
    if (fits(row, name)) for (const v of new Set(FIELDS[name](row))) counts.set(v, (counts.get(v) || 0) + 1);
  }
  const box = el("select", { "aria-label": name });
  box.append(el("option", { value: "" }, "all"));
  const sorted = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 200);
  if (chosen[name] && !counts.has(chosen[name])) sorted.unshift([chosen[name], 0]);
  for (const [value, count] of sorted) {
    const option = el("option", {}, visible(value).slice(0, 60) + " (" + count + ")");
    option.value = value;
    option.selected = value === chosen[name];
    box.append(option);
  }
  box.addEventListener("change", () => { chosen[name] = box.value; limit = PAGE; draw(); });
  return el("label", {}, name, box);
}

function search() {
  const box = el("input", { type: "search", "aria-label": "text" });
  box.value = chosen.text;
  box.addEventListener("change", () => { chosen.text = box.value; limit = PAGE; draw(); });
  return el("label", {}, "text contains", box);
}

// Of all that a node sent in a round, whatever is filtered: a share of the rejected rows alone would
// show every node as wholly rejected.
function rounds() {
  const nodes = new Map();
  const all = new Set();
  for (const row of data.rows) {
    const name = FIELDS.node(row)[0];
    if (!Number.isInteger(row.round) || (chosen.node && name !== chosen.node)) continue;
    if (!nodes.has(name)) nodes.set(name, new Map());
    const cell = nodes.get(name).get(row.round) || { n: 0, rejected: 0 };
    cell.n += 1;
    cell.rejected += row.outcome === "reject" && fits(row, "outcome") ? 1 : 0;
    nodes.get(name).set(row.round, cell);
    all.add(row.round);
  }
  if (!nodes.size) return document.createTextNode("");
  const order = [...all].sort((a, b) => a - b).slice(-60);
  const head = el("tr", {}, el("th", {}, "node"), ...order.map((round) => el("th", {}, round)));
  const rejected = (cells) => [...cells.values()].reduce((sum, cell) => sum + cell.rejected, 0);
  // Of more nodes than fit, those with most rejections; then by name, numbers within names as such.
  const most = [...nodes].sort((a, b) => rejected(b[1]) - rejected(a[1])).slice(0, 64);
  most.sort((a, b) => String(a[0]).localeCompare(String(b[0]), undefined, { numeric: true }));
  const body = most.map(([name, cells]) =>
    el("tr", {}, el("th", {}, visible(name).slice(0, 40)), ...order.map((round) => {
      const cell = cells.get(round);
      if (!cell) return el("td", {}, "");
      const level = Math.ceil((4 * cell.rejected) / cell.n);
      return el("td", { class: "lv" + level, title: cell.rejected + " of " + cell.n + " rejected" }, cell.rejected + "/" + cell.n);
    })));
  return el("section", {}, el("h2", {}, "Rejected by node and round"), el("div", { class: "scroll" }, el("table", {}, head, ...body)));
}

function card(row) {
  const spans = row.findings.map((finding) => finding.span).filter((span) => span);
  const about = ["#" + row.index];
  if (row.id !== null && row.id !== undefined) about.push("id " + visible(row.id));
  about.push(visible(FIELDS.node(row)[0]));
  if (Number.isInteger(row.round)) about.push("round " + row.round);
  for (const [name, p] of row.p || []) {
    about.push("p = " + Number(p).toPrecision(2) + (row.by.length > 1 ? " (" + visible(name) + ")" : ""));
  }
  const list = row.findings.map((finding) =>
    el("li", {}, el("b", {}, visible(finding.kind)), " ", visible(finding.message)));
  return el("article", { class: row.outcome === "reject" || row.outcome === "abstain" ? row.outcome : "accept" },
    el("header", {}, el("strong", {}, visible(row.outcome)), " ", visible(row.cause) + " by " + row.by.map(visible).join(", "), el("span", {}, about.join(" \u00b7 "))),
    el("ul", {}, ...list),
    row.prompt === undefined ? "" : el("details", {}, el("summary", {}, "prompt"), el("pre", {}, visible(row.prompt))),
    row.text === undefined ? "" : marked(row.text, spans),
    row.cut ? el("p", {}, "(cut)") : "");
}

function draw() {
  const rows = data.rows.filter((row) => fits(row));
  const counts = { accept: 0, reject: 0, abstain: 0 };
  for (const row of rows) if (row.outcome in counts) counts[row.outcome] += 1;
  const more = el("button", { type: "button" }, "show more");
  more.addEventListener("click", () => { limit += PAGE; draw(); });
  app.replaceChildren(
    el("h1", {}, "Verdicts: " + visible(data.title)),
    el("p", {}, rows.length + " of " + data.rows.length + " rows: accept " + counts.accept + ", reject " + counts.reject + ", abstain " + counts.abstain + (data.left_out ? "; " + data.left_out + " rows are not on this page" : "")),
    data.about ? el("p", {}, data.about) : "",
    el("nav", {}, ...Object.keys(FIELDS).map(select), search()),
    data.about ? "" : rounds(), // a log does not say how many a node sent in a round
    ...rows.slice(0, limit).map(card),
    rows.length > limit ? more : "");
}

draw();
