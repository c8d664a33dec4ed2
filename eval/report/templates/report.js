"use strict";

// Sorting: numbers by data-sort, largest first; text from A to Z. Cells without a number stay last.
for (const button of document.querySelectorAll(".sort")) {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const column = head.cellIndex;
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows];
    const numeric = rows.some((row) => "sort" in row.cells[column].dataset);
    const first = numeric ? "descending" : "ascending";
    const other = numeric ? "ascending" : "descending";
    const order = head.ariaSort === first ? other : first;
    const sign = order === "ascending" ? 1 : -1;
    const value = (row) => {
      const cell = row.cells[column];
      if (!numeric) return cell.textContent;
      return "sort" in cell.dataset ? Number(cell.dataset.sort) : null;
    };
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (numeric ? x - y : x.localeCompare(y, "en", { numeric: true }));
    });
    for (const each of head.parentElement.cells) each.ariaSort = each === head ? order : "none";
    body.append(...rows);
  });
}

// Details of a score on hover, focus and tap; Escape hides them. Screen readers find them in the cell.
const tip = document.getElementById("tip");
let shown = null;
let closing = 0;
function showTip(cell) {
  clearTimeout(closing);
  shown = cell;
  tip.textContent = cell.querySelector(".details").textContent.slice(2).split("; ").join("\n");
  tip.hidden = false;
  placeTip();
}
function placeTip() {
  if (tip.hidden) return;
  const at = shown.getBoundingClientRect();
  const below = at.bottom + tip.offsetHeight + 8 < innerHeight;
  tip.style.top = `${below ? at.bottom + 4 : Math.max(4, at.top - tip.offsetHeight - 4)}px`;
  tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - tip.offsetWidth - 8))}px`;
}
function hideTip() {
  closing = setTimeout(() => (tip.hidden = true), 150);
}
for (const cell of document.querySelectorAll(".cell")) {
  for (const event of ["mouseenter", "focus", "click"]) cell.addEventListener(event, () => showTip(cell));
  for (const event of ["mouseleave", "blur"]) cell.addEventListener(event, hideTip);
}
tip.addEventListener("mouseenter", () => clearTimeout(closing));
tip.addEventListener("mouseleave", hideTip);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") tip.hidden = true;
});
document.addEventListener("scroll", placeTip, { capture: true, passive: true });
addEventListener("resize", placeTip);
