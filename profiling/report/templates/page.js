"use strict";

// Headers become buttons that sort, long tables show their first rows and get a field that filters.
// Rows are moved and hidden, never made anew. Without this script all rows are there, as written.

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

function compare(one, other, isNumber, sign) {
  if (!isNumber) return sign * collator.compare(one, other);
  if (one === null || other === null) return (one === null) - (other === null); // unknown: last
  return sign * (one - other);
}

function sortBy(table, header, column) {
  const isNumber = header.classList.contains("number");
  const [first, other] = isNumber ? ["descending", "ascending"] : ["ascending", "descending"];
  const order = header.getAttribute("aria-sort") === first ? other : first;
  for (const one of table.tHead.rows[0].cells) one.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
  const body = table.tBodies[0];
  const keyed = Array.from(body.rows, (row) => [keyOf(row, column, isNumber), row]);
  const sign = order === "ascending" ? 1 : -1;
  keyed.sort((one, other) => compare(one[0], other[0], isNumber, sign));
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
  const field = element("input", { type: "search", placeholder: "such as backward bf16" });
  const label = element("label", { className: "filter" });
  const count = element("output", { className: "count" });
  const more = element("button", { type: "button", className: "more" });
  let isOpen = body.rows.length <= FIRST;

  function refresh() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const isFound = words.every((word) => texts.get(row).includes(word));
      row.hidden = !isFound || (!isOpen && !words.length && shown >= FIRST);
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
