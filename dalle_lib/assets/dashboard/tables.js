// Tables that are sorted by click and keyboard and stay quick with thousands of rows.
"use strict";

(function (dalle) {
  const FIRST = 200, CHUNK = 400; // rows shown at first, and rows built before the browser gets its turn
  let count = 0;

  // Compares values of any kind: numbers before texts, and what is missing last in either order.
  function compared(a, b, sign) {
    const isNone = (value) => value === null || value === undefined || value === "";
    if (isNone(a) || isNone(b)) return isNone(a) - isNone(b);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  }

  // A table. Each of `columns` has {title, value(row), cell(row)?, isNumber?, isHead?, hint?}; without `cell` the value
  // is shown as text of a stranger. `sorted` names the column by which it is sorted at first, with its direction.
  dalle.Table = class {
    constructor({ caption, columns, sorted = null, isOwn = () => false, empty = "Nothing is told." }) {
      Object.assign(this, { columns, isOwn, empty, rows: [], isWhole: false, told: "", building: 0 });
      this.sorted = sorted ? { ...sorted } : { column: -1, direction: "ascending" };
      this.body = dalle.make("tbody");
      this.heads = columns.map((column, at) => this.head(column, at));
      const id = `dalle-table-${++count}`, title = dalle.make("caption", { id, class: "dalle-hidden" }, caption);
      const table = dalle.make("table", { class: "dalle-table" }, title,
        dalle.make("thead", {}, dalle.make("tr", {}, ...this.heads)), this.body);
      const region = { class: "dalle-scroll", role: "region", tabindex: 0, "aria-labelledby": id };
      this.scroll = dalle.make("div", region, table);
      this.more = dalle.make("button", { type: "button", class: "dalle-button", hidden: true });
      this.more.addEventListener("click", () => this.showAll());
      this.note = dalle.make("p", { class: "dalle-note", hidden: true });
      this.element = dalle.make("div", {}, this.scroll, this.note, this.more);
      this.mark();
    }

    head(column, at) {
      const arrow = dalle.make("span", { "aria-hidden": "true", class: "dalle-arrow" });
      const parts = column.isNumber ? [arrow, column.title] : [column.title, arrow]; // numbers end at the right edge
      const button = dalle.make("button", { type: "button", onclick: () => this.sortBy(at) }, ...parts);
      return dalle.make("th", { scope: "col", title: column.hint, class: column.isNumber && "dalle-number" }, button);
    }

    // Sorts by a column: numbers the largest first, texts from A on; a second time, the other way round.
    sortBy(at) {
      const first = this.columns[at].isNumber && !this.columns[at].isRank ? "descending" : "ascending";
      const other = this.sorted.direction === "ascending" ? "descending" : "ascending";
      this.sorted = { column: at, direction: this.sorted.column === at ? other : first };
      this.mark();
      this.build();
    }

    mark() {
      this.heads.forEach((head, at) => {
        const direction = at === this.sorted.column ? this.sorted.direction : "none";
        head.setAttribute("aria-sort", direction);
        head.querySelector(".dalle-arrow").textContent = { ascending: "▲", descending: "▼", none: "" }[direction];
      });
    }

    // Shows other rows; those that are the same are left as they are, with what a reader has selected there.
    show(rows, isForced = false) {
      const told = JSON.stringify(rows);
      if (!isForced && told === this.told) return;
      [this.rows, this.told] = [rows, told];
      this.build();
    }

    showAll() {
      this.isWhole = true;
      this.build();
      this.scroll.focus();
    }

    inOrder() {
      const { column, direction } = this.sorted, sign = direction === "ascending" ? 1 : -1;
      if (column < 0) return this.rows;
      const keyed = this.rows.map((row) => [this.columns[column].value(row), row]);
      return keyed.sort((a, b) => compared(a[0], b[0], sign)).map(([, row]) => row);
    }

    // Builds the rows aside, in chunks, and puts them in place when they are whole.
    build() {
      const ordered = this.inOrder(), body = dalle.make("tbody"), turn = ++this.building;
      const shown = this.isWhole ? ordered : ordered.slice(0, FIRST);
      const own = this.isWhole ? [] : ordered.slice(FIRST).filter(this.isOwn).slice(0, 20);
      const all = shown.concat(own);
      const next = (from) => {
        if (turn !== this.building) return; // other rows came meanwhile
        body.append(...all.slice(from, from + CHUNK).map((row) => this.row(row)));
        if (from + CHUNK < all.length) setTimeout(next, 0, from + CHUNK);
        else this.place(body, all.length, ordered.length);
      };
      next(0);
    }

    place(body, shown, total) {
      this.body.replaceWith(body);
      this.body = body;
      this.scroll.hidden = total === 0;
      this.note.hidden = total > 0;
      this.note.textContent = this.empty;
      this.more.hidden = shown >= total;
      this.more.textContent = `Show all ${dalle.count(total, true)}`;
    }

    row(row) {
      const cells = this.columns.map((column) => {
        const shown = column.cell ? column.cell(row) : dalle.text(column.value(row));
        const attributes = { class: column.isNumber && "dalle-number" };
        if (column.isHead) return dalle.make("th", { ...attributes, scope: "row" }, shown);
        return dalle.make("td", attributes, shown);
      });
      return dalle.make("tr", { class: this.isOwn(row) && "dalle-own" }, ...cells);
    }
  };

  // Returns a column of numbers.
  dalle.numbers = (title, name, shown = dalle.count, more = {}) =>
    ({ title, isNumber: true, value: (row) => row[name], cell: (row) => shown(row[name]), ...more });
})(globalThis.dalle);
