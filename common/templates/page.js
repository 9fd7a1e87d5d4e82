"use strict";

// Makes headers sort, shortens long tables to their first rows, and adds a filter to them.
// Rows are moved and hidden, never rebuilt. Without this script the page shows all rows.

const FIRST = 12;
const collator = new Intl.Collator("en", { numeric: true });

function element(name, properties) {
  return Object.assign(document.createElement(name), properties);
}

function keyOf(row, column, isNumber) {
  const cell = row.cells[column];
  if (!isNumber) return cell.firstChild ? cell.firstChild.textContent.trim() : "";
  return "value" in cell.dataset ? Number(cell.dataset.value) : null;
}

function compare(left, right, isNumber, sign) {
  if (!isNumber) return sign * collator.compare(left, right);
  if (left === null || right === null) return (left === null) - (right === null); // unknown: last
  return sign * (left - right);
}

function sortBy(table, header, column) {
  const isNumber = header.classList.contains("number");
  const [first, second] = isNumber ? ["descending", "ascending"] : ["ascending", "descending"];
  const order = header.getAttribute("aria-sort") === first ? second : first;
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
  const body = table.tBodies[0];
  const keyed = Array.from(body.rows, (row) => [keyOf(row, column, isNumber), row]);
  const sign = order === "ascending" ? 1 : -1;
  keyed.sort((left, right) => compare(left[0], right[0], isNumber, sign));
  body.append(...keyed.map(([, row]) => row));
}

function makeSortable(table, refresh) {
  Array.from(table.tHead.rows[0].cells).forEach((header, column) => {
    const button = element("button", { type: "button" });
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      sortBy(table, header, column);
      refresh();
    });
  });
}

function makeFilter(container, table) {
  const body = table.tBodies[0];
  const texts = new Map(Array.from(body.rows, (row) => [row, row.textContent.toLowerCase()]));
  const field = element("input", { type: "search", placeholder: "words in a row" });
  const label = element("label", { className: "filter" });
  const count = element("output", { className: "count" });
  const more = element("button", { type: "button", className: "more" });
  let isOpen = body.rows.length <= FIRST;

  function refresh() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const isMatch = words.every((word) => texts.get(row).includes(word));
      row.hidden = !isMatch || (!isOpen && !words.length && shown >= FIRST);
      shown += !row.hidden;
    }
    const isWhole = shown === body.rows.length;
    count.textContent = isWhole ? "" : `${shown} of ${body.rows.length} rows are shown.`;
    more.hidden = body.rows.length <= FIRST || words.length > 0;
    more.textContent = isOpen ? `Show the first ${FIRST}` : `Show all ${body.rows.length}`;
    more.setAttribute("aria-expanded", String(isOpen));
  }

  more.addEventListener("click", () => {
    isOpen = !isOpen;
    refresh();
  });
  field.addEventListener("input", refresh);
  count.setAttribute("aria-live", "polite");
  label.append("Filter ", field);
  const line = element("p", { className: "note" });
  line.append(count, " ", more);
  container.prepend(label);
  container.querySelector(".scroll").after(line);
  refresh();
  return refresh;
}

for (const container of document.querySelectorAll(".table")) {
  const table = container.querySelector("table");
  const refresh = "filter" in container.dataset ? makeFilter(container, table) : () => {};
  makeSortable(table, refresh);
}
