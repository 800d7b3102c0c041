
"use strict";
// One item at a time; every change is kept in localStorage under the sheet's id; answers leave only as a saved file.
const sheet = document.body.dataset.sheet;
const store = "rapo-preference-" + sheet;
const items = [...document.querySelectorAll(".item")];
const by = (id) => document.getElementById(id);
const seconds = {};
let place = 0;
let since = Date.now();

const chosen = (item) => item.querySelector("input[type=radio]:checked")?.value ?? "";
const comment = (item) => item.querySelector("textarea");

function answers() {
  return items.map((item) => ({
    item: item.dataset.item,
    annotator: by("annotator").value.trim(),
    choice: chosen(item),
    comment: comment(item).value.trim(),
    seconds: Math.round(seconds[item.dataset.item] ?? 0),
  }));
}

function keep() {
  try {
    localStorage.setItem(store, JSON.stringify({ place, answers: answers() }));
    by("kept").textContent = "Draft kept in this browser.";
  } catch {
    by("kept").textContent = "This browser keeps no draft: save before you close the page.";
  }
}

function recall() {
  let draft = null;
  try {
    draft = JSON.parse(localStorage.getItem(store));
  } catch {
    return;
  }
  for (const answer of draft?.answers ?? []) {
    const item = items.find((one) => one.dataset.item === answer.item);
    if (!item) continue;
    const button = [...item.querySelectorAll("input[type=radio]")].find((one) => one.value === answer.choice);
    if (button) button.checked = true;
    comment(item).value = answer.comment;
    seconds[answer.item] = answer.seconds;
    by("annotator").value = answer.annotator;
  }
  place = Math.min(Math.max(draft?.place ?? 0, 0), items.length - 1);
}

function clock() {
  const item = items[place].dataset.item;
  seconds[item] = (seconds[item] ?? 0) + Math.min((Date.now() - since) / 1000, 600); // a break is no reading time
  since = Date.now();
}

function show(to) {
  clock();
  place = Math.min(Math.max(to, 0), items.length - 1);
  items.forEach((item, k) => { item.hidden = k !== place; });
  by("previous").disabled = place === 0;
  by("next").disabled = place === items.length - 1;
  tally();
  items[place].focus({ preventScroll: true });
}

function tally() {
  const done = items.filter(chosen).length;
  by("progress").textContent = `${done} of ${items.length} answered`;
}

function choose(number) {
  items[place].querySelectorAll("input[type=radio]")[number].checked = true;
  changed();
}

function changed() {
  clock();
  tally();
  keep();
}

function save(name, kind, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function ready() {
  changed();
  if (by("annotator").value.trim()) return true;
  by("kept").textContent = "Enter your code first.";
  by("annotator").focus();
  return false;
}

const quoted = (value) => {
  const text = String(value);
  const plain = /^\s*[=+\-@]/.test(text) ? "'" + text : text;
  return '"' + plain.replaceAll('"', '""') + '"';
};

function saveJson() {
  if (ready()) save(`answers_${sheet}.json`, "application/json", JSON.stringify({ sheet, answers: answers() }, null, 1));
}

function saveCsv() {
  if (!ready()) return;
  const rows = answers();
  const lines = [Object.keys(rows[0]), ...rows.map(Object.values)].map((row) => row.map(quoted).join(","));
  save(`answers_${sheet}.csv`, "text/csv", lines.join("\n") + "\n");
}

function clearDraft() {
  if (!confirm("Delete all answers on this page?")) return;
  by("sheet").reset();
  by("annotator").value = "";
  for (const item of items) delete seconds[item.dataset.item];
  try { localStorage.removeItem(store); } catch { /* nothing was kept */ }
  by("kept").textContent = "Draft deleted.";
  since = Date.now();
  show(0);
}

function pressed(event) {
  const typing = event.target.matches("textarea, #annotator");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const number = ["1", "2", "3"].indexOf(event.key);
  if (number >= 0) choose(number);
  else if (event.key === "ArrowRight") show(place + 1);
  else if (event.key === "ArrowLeft") show(place - 1);
  else return;
  event.preventDefault(); // left and right turn the page; up and down still move among the answers
}

recall();
by("previous").addEventListener("click", () => show(place - 1));
by("next").addEventListener("click", () => show(place + 1));
by("save-json").addEventListener("click", saveJson);
by("save-csv").addEventListener("click", saveCsv);
by("clear").addEventListener("click", clearDraft);
by("sheet").addEventListener("change", changed);
by("sheet").addEventListener("submit", (event) => event.preventDefault());
by("annotator").addEventListener("change", keep);
document.addEventListener("keydown", pressed);
show(place);
