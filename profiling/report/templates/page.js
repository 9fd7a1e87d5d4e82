"use strict";

// Headers become buttons that sort, and long tables get a field that filters. Rows are moved and
// hidden, never made anew. Without this script the tables are as they were written.

const collator = new Intl.Collator("en", { numeric: true });

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
  const before = header.getAttribute("aria-sort");
  const first = isNumber ? "descending" : "ascending";
  const other = isNumber ? "ascending" : "descending";
  const order = before === first ? other : first;
  for (const one of table.tHead.rows[0].cells) one.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
  const body = table.tBodies[0];
  const keyed = Array.from(body.rows, (row) => [keyOf(row, column, isNumber), row]);
  const sign = order === "ascending" ? 1 : -1;
  keyed.sort((one, other) => compare(one[0], other[0], isNumber, sign));
  body.append(...keyed.map(([, row]) => row));
}

function makeSortable(table) {
  Array.from(table.tHead.rows[0].cells).forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sortBy(table, header, column));
  });
}

function addFilter(container, table) {
  const rows = Array.from(table.tBodies[0].rows);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const label = document.createElement("label");
  const field = document.createElement("input");
  const count = document.createElement("output");
  label.className = "filter";
  field.type = "search";
  field.placeholder = "such as backward bf16";
  count.setAttribute("aria-live", "polite");
  label.append("Filter ", field, count);
  container.prepend(label);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      shown += !row.hidden;
    });
    count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  });
}

for (const container of document.querySelectorAll(".table")) {
  const table = container.querySelector("table");
  makeSortable(table);
  if ("filter" in container.dataset) addFilter(container, table);
}
