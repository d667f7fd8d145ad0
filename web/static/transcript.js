// The conversation on the page: one row an item, set like the script of a play.

const UNITS = [
  ["heard", "Heard", "from the end of your speech to its words"],
  ["thought", "Thought", "from there to the answer's first word"],
  ["spoke", "Spoke", "from there to its first sound"],
  ["answered", "Answered", "from there to the answer's first word, which came with its sound"],
  ["cancelled", "Cancelled", "from there to when the answer was called off, before its first sound"],
];
const HALF_MS = 2000; // a wait of this length fills half of the bar; none fills all of it

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function seconds(milliseconds) {
  return (milliseconds / 1000).toFixed(2);
}

export class Transcript {
  #list;
  #scroller;
  #announcer;
  #names;
  #rows = new Map();
  #conversation = null;
  #pinned = true;
  #top = 0;

  /** `names()` gives {you, voice}; finished lines are told to `announcer`, a live region. */
  constructor({ list, scroller, announcer, names }) {
    this.#list = list;
    this.#scroller = scroller;
    this.#announcer = announcer;
    this.#names = names;
    scroller.addEventListener("scroll", () => this.#scrolled());
    const grown = new ResizeObserver(() => this.#follow());
    grown.observe(scroller);
    grown.observe(list);
  }

  show(conversation) {
    this.#conversation = conversation;
  }

  added(item) {
    const row = element("li", item.role === "user" ? "row you" : "row voice");
    const { you, voice } = this.#names();
    const line = element("p", "line");
    const parts = {
      row,
      said: element("span", "said"),
      rest: element("span", "rest"),
      note: element("span", "note"),
      figures: null,
    };
    line.append(parts.said, parts.rest, parts.note);
    row.append(element("span", "name", item.role === "user" ? you : voice), line);
    row.dataset.item = item.id;
    this.#rows.set(item.id, parts);
    this.#list.append(row);
    this.changed(item);
  }

  removed(item) {
    this.#rows.get(item.id)?.row.remove();
    this.#rows.delete(item.id);
  }

  changed(item) {
    const parts = this.#rows.get(item.id);
    if (parts === undefined) return;
    if (item.role === "user") this.#showUser(item, parts);
    else this.#showAssistant(item, parts);
    set(parts.note, item.note);
  }

  #showUser(item, parts) {
    const { row, said } = parts;
    set(said, item.text);
    row.classList.toggle("partial", !item.final);
    row.classList.toggle("waiting", !item.final && item.text === "");
    row.classList.toggle("typed", item.typed);
    this.#showFigures(item, parts);
    if (item.final) this.#announce(row, `You: ${item.text}`);
  }

  #showAssistant(item, parts) {
    const { row, said, rest } = parts;
    let heard = this.#conversation.heardCharacters(item);
    while (item.text[heard] === " ") heard += 1; // so that no space is struck out
    const cut = item.cutAtMs !== null;
    set(said, item.text.slice(0, heard));
    set(rest, item.text.slice(heard));
    row.classList.toggle("waiting", item.text === "");
    row.classList.toggle("interrupted", cut);
    if (cut && rest.title === "") {
      rest.classList.add("unheard");
      rest.title = "Not heard: you interrupted";
    }
    this.#showFigures(item, parts);
    if (item.final) this.#announce(row, `${this.#names().voice}: ${item.text}`);
  }

  #showFigures(item, parts) {
    const figures = this.#conversation.figures(item);
    const spoken = figures?.spoke != null || figures?.answered != null;
    const over = spoken || figures?.cancelled != null || (item.final && item.audioMs === 0);
    if (figures === null || !over) {
      parts.figures?.box.remove();
      parts.figures = null;
      return;
    }
    if (parts.figures === null) {
      parts.figures = makeFigures();
      parts.row.append(parts.figures.box);
    }
    const { total, bar, units } = parts.figures;
    set(total, `${seconds(figures.total)} s`);
    for (const [key] of UNITS) {
      const value = figures[key];
      units[key].box.hidden = units[key].segment.hidden = value === null;
      units[key].segment.style.flexGrow = String(value ?? 0);
      set(units[key].value, value === null ? "" : seconds(value));
    }
    bar.style.setProperty("--share", String(figures.total / (figures.total + HALF_MS)));
  }

  #announce(row, text) {
    if (row.dataset.announced) return;
    row.dataset.announced = "yes";
    this.#announcer.textContent = text;
  }

  /** Only a way up lets go of the end: lines that grow since the last scroll leave it behind, too. */
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    if (scrollHeight - scrollTop - clientHeight < 48) this.#pinned = true;
    else if (scrollTop < this.#top) this.#pinned = false;
    this.#top = scrollTop;
  }

  #follow() {
    if (this.#pinned) this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }
}

function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function makeFigures() {
  const box = element("div", "figures");
  const total = element("span", "total");
  total.title = "From the end of your turn to the first sound of the answer";
  const bar = element("span", "bar");
  bar.setAttribute("aria-hidden", "true");
  const legend = element("span", "legend");
  const units = {};
  for (const [key, label, title] of UNITS) {
    const segment = element("i", key);
    const unit = element("span", `unit ${key}`);
    const value = element("b", "");
    unit.title = title;
    unit.append(element("span", "what", label), " ", value);
    bar.append(segment);
    legend.append(unit);
    units[key] = { segment, value, box: unit };
  }
  box.append(total, bar, legend);
  return { box, total, bar, units };
}
