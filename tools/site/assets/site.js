// SPDX-License-Identifier: Apache-2.0

"use strict";

const base = document.currentScript.dataset.base;
const root = document.documentElement;

// The theme is the reader's choice, or that of the system.
function chosenTheme() {
  try { return localStorage.getItem("theme"); } catch { return null; }
}
if (chosenTheme()) root.dataset.theme = chosenTheme();

function switchTheme() {
  const dark = root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this page only */ }
}

// Words of questions that say nothing about what is asked.
const empty = new Set(("a an and are be by can do does for from get has have how i if in is it mean " +
  "means my of on one or so that the there this to was we what when where which who why will with " +
  "you your").split(" "));

function termsOf(query) {
  const words = query.toLowerCase().match(/[\p{L}\p{N}_.-]+/gu) || [];
  const told = words.filter((word) => !empty.has(word));
  return told.length > 0 ? told : words;
}

// stemOf cuts the ends that differ between "limit", "limits", and "limited".
function stemOf(term) {
  return term.length > 4 && !term.includes("_") ? term.replace(/(ing|ed|es|s|e)$/, "") : term;
}

// countOf returns how many words of a text begin with a stem.
function countOf(text, stem) {
  let count = 0;
  for (let at = text.indexOf(stem); at >= 0 && count < 5; at = text.indexOf(stem, at + stem.length)) {
    if (at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1])) count++;
  }
  return count;
}

// search returns the entries that have most of the terms, the best first.
function search(query) {
  const stems = termsOf(query).map(stemOf);
  const found = [];
  if (stems.length === 0) return found;
  for (const e of window.searchIndex) {
    e.low ??= { h: e.h.toLowerCase(), p: e.p.toLowerCase(), t: e.t.toLowerCase() };
    let score = 0, matched = 0;
    for (const stem of stems) {
      const h = countOf(e.low.h, stem), p = countOf(e.low.p, stem), t = countOf(e.low.t, stem);
      if (h + p + t > 0) matched++;
      score += (h > 0 ? 8 : 0) + (p > 0 ? (e.h ? 4 : 9) : 0) + Math.min(t, 3);
      if (e.low.h === stem) score += 20;
    }
    if (matched * 2 < stems.length || matched === 0) continue;
    score *= Math.pow(matched / stems.length, 2);
    if (e.s === "Developers") score *= 0.5;
    if (e.s === "Recipes") score *= 1.2;
    found.push({ entry: e, score });
  }
  return found.sort((a, b) => b.score - a.score).slice(0, 12).map((f) => f.entry);
}

// excerptOf appends the part of a text around the first term, with all terms marked.
function excerptOf(e, stems) {
  const at = Math.max(0, Math.min(...stems.map((stem) => {
    const first = e.low.t.indexOf(stem);
    return first < 0 ? Infinity : first;
  }).concat(e.t.length)) - 50);
  let part = e.t.slice(at === e.t.length - 50 ? 0 : at).slice(0, 170);
  if (at > 0) part = "… " + part.slice(part.indexOf(" ") + 1); // from a word on
  const line = document.createElement("span");
  const escaped = stems.map((stem) => stem.replace(/[.*+?^${}()|[\]\\-]/g, "\\$&")).join("|");
  part.split(new RegExp(`(${escaped})`, "iu")).forEach((piece, i) => {
    if (i % 2 === 0) { line.append(piece); return; }
    const mark = document.createElement("mark");
    mark.textContent = piece;
    line.append(mark);
  });
  return line;
}

function show(results, query) {
  results.replaceChildren();
  results.hidden = query.trim() === "";
  if (results.hidden) return;
  const stems = termsOf(query).map(stemOf);
  for (const e of search(query)) {
    const link = document.createElement("a");
    link.href = base + e.u;
    link.setAttribute("role", "option");
    const title = document.createElement("strong");
    title.textContent = e.h || e.p;
    const place = document.createElement("small");
    place.textContent = e.h ? `${e.s} › ${e.p}` : e.s;
    link.append(title, place, excerptOf(e, stems));
    results.append(link);
  }
  if (!results.firstChild) {
    const nothing = document.createElement("p");
    nothing.textContent = "Nothing found.";
    results.append(nothing);
  }
}

// loadIndex loads what can be found at the first search.
let loading;
function loadIndex() {
  loading ??= new Promise((resolve) => {
    const script = document.createElement("script");
    script.src = base + "search.js";
    script.onload = resolve;
    document.head.append(script);
  });
  return loading;
}

// move selects the next or previous result.
function move(results, by) {
  const links = [...results.querySelectorAll("a")];
  const now = links.findIndex((link) => link.getAttribute("aria-selected") === "true");
  links[now]?.removeAttribute("aria-selected");
  const next = links[(now + by + links.length) % links.length];
  next?.setAttribute("aria-selected", "true");
  next?.scrollIntoView({ block: "nearest" });
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".theme").addEventListener("click", switchTheme);
  const form = document.querySelector(".search"), input = form.querySelector("input");
  const results = form.querySelector(".results");
  const update = async () => {
    await loadIndex();
    show(results, input.value);
  };
  const asked = new URLSearchParams(location.search).get("q");
  if (asked) {
    input.value = asked;
    update();
  }
  input.addEventListener("focus", loadIndex, { once: true });
  input.addEventListener("input", update);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      move(results, event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === "Escape") {
      results.hidden = true;
    }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    (results.querySelector("[aria-selected]") || results.querySelector("a"))?.click();
  });
  document.addEventListener("click", (event) => {
    if (!form.contains(event.target) || event.target.closest("a")) results.hidden = true;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) {
      event.preventDefault();
      input.focus();
    }
  });
  for (const heading of document.querySelectorAll("main :is(h2, h3, h4)[id]")) {
    const link = document.createElement("a");
    link.className = "anchor";
    link.href = "#" + heading.id;
    link.textContent = "#";
    link.setAttribute("aria-label", "Link to this section");
    heading.append(link);
  }
  if (matchMedia("(max-width: 800px)").matches) {
    document.querySelector(".menu").removeAttribute("open");
  }
});
