"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const cells = [...document.querySelectorAll(".grid button")];
  const picker = by("statistic"), scale = by("scale");
  const state = { statistic: 0, cell: Number(cells.findIndex((cell) => !cell.disabled)) };
  const SVG = "http://www.w3.org/2000/svg";

  // The same rounding as headscope._survey.wording.shown.
  const shown = (x) => {
    if (x === null) return "-";
    const size = Math.abs(x);
    return x.toFixed(size < 10 ? 3 : size < 100 ? 2 : size < 1000 ? 1 : 0);
  };
  const name = (cell) => `${data.layers[Math.floor(cell / data.heads.length)]}.${data.heads[cell % data.heads.length]}`;
  const make = (tag, about, text) => {
    const found = document.createElement(tag);
    Object.assign(found, about);
    if (text !== undefined) found.textContent = text;
    return found;
  };
  const draw = (tag, about) => {
    const found = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(about)) found.setAttribute(key, value);
    return found;
  };

  const range = (one) => {
    const seen = one.mean.filter((x) => x !== null);
    if (!seen.length) return null;
    const least = Math.min(...seen), most = Math.max(...seen);
    if (one.signed) return { low: -Math.max(-least, most, 0), high: Math.max(-least, most, 0) };
    return { low: scale.value === "range" ? least : 0, high: most };
  };

  function paint() {
    const one = data.statistics[state.statistic], ends = range(one);
    const steps = one.signed ? data.steps : data.steps - 1, letter = one.signed ? "d" : "s";
    cells.forEach((cell, at) => {
      if (cell.disabled) return;
      const value = one.mean[at];
      const t = value === null || ends.high === ends.low ? 0.5 : (value - ends.low) / (ends.high - ends.low);
      cell.className = value === null ? "absent" : `${letter}${Math.round(steps * t)}`;
      cell.textContent = shown(value);
      cell.title = value === null ? `head ${name(at)}: nothing to measure` : `head ${name(at)}: ${shown(value)}`;
      cell.setAttribute("aria-label", cell.title);
    });
    by("meaning").textContent = `${one.meaning}. Mean over ${data.windows} windows.`;
    by("caption").textContent = `${one.name}, mean of every head; layers down, heads across, both from 0`;
    const ramp = by("ramp");
    ramp.replaceChildren(...Array.from({ length: steps + 1 }, (_, n) => make("i", { className: `${letter}${n}` })));
    by("low").textContent = ends ? shown(ends.low) : "nothing";
    by("high").textContent = ends ? shown(ends.high) : "to measure";
    by("unit").textContent = one.unit;
    scale.disabled = one.signed;
    inspect();
  }

  function inspect() {
    cells.forEach((cell, at) => {
      cell.setAttribute("aria-pressed", String(at === state.cell));
      cell.tabIndex = at === state.cell ? 0 : -1;
    });
    by("head").textContent = `Head ${name(state.cell)}`;
    const one = data.statistics[state.statistic];
    by("said").textContent = one.mean[state.cell] === null
      ? `${one.name}: nothing to measure.`
      : `${one.name}: ${shown(one.mean[state.cell])} on average; half of its ${one.count[state.cell]} windows lie between ` +
        `${shown(one.q25[state.cell])} and ${shown(one.q75[state.cell])}.`;
    spread(one);
    by("numbers").replaceChildren(...data.statistics.map((each, at) => {
      const row = make("tr", { className: at === state.statistic ? "chosen" : "" });
      const head = make("th", { scope: "row" });
      const button = make("button", { type: "button", title: each.meaning }, each.name);
      button.addEventListener("click", () => choose(at));
      head.append(button);
      row.append(head, ...["mean", "deviation", "q05", "q25", "q50", "q75", "q95"].map((field) => make("td", {}, shown(each[field][state.cell]))));
      return row;
    }));
    const near = by("nearest");
    if (near && data.nearest) {
      near.replaceChildren("Most alike: ", ...data.nearest[state.cell].flatMap(([other, distance], at) => {
        const button = make("button", { type: "button" }, name(other));
        button.addEventListener("click", () => go(other));
        return [at ? ", " : "", button, ` (${shown(distance)})`];
      }));
    }
  }

  // One head's windows: the line from 5% to 95%, the box from 25% to 75%, the median, the mean; behind, all heads' means.
  function spread(one) {
    const svg = by("spread");
    svg.replaceChildren();
    const low = Math.min(...one.q05.filter((x) => x !== null)), high = Math.max(...one.q95.filter((x) => x !== null));
    if (!Number.isFinite(low)) return;
    const from = one.signed ? low : Math.min(low, 0), reach = high - from || 1;
    const x = (value) => 8 + (384 * (value - from)) / reach;
    const line = (kind, x1, y1, x2, y2) => svg.append(draw("line", { class: kind, x1, y1, x2, y2 }));
    for (const mean of one.mean) if (mean !== null) line("all", x(mean), 42, x(mean), 50);
    const at = state.cell;
    if (one.mean[at] !== null) {
      line("whisker", x(one.q05[at]), 20, x(one.q95[at]), 20);
      svg.append(draw("rect", { class: "box", x: x(one.q25[at]), y: 9, width: Math.max(1, x(one.q75[at]) - x(one.q25[at])), height: 22 }));
      line("median", x(one.q50[at]), 6, x(one.q50[at]), 34);
      svg.append(draw("circle", { class: "dot", cx: x(one.mean[at]), cy: 20, r: 3.5 }));
    }
    line("rule", 8, 51, 392, 51);
    for (let n = 0; n <= 4; n++) {
      const value = from + (reach * n) / 4;
      const text = draw("text", { class: n === 0 ? "tick start" : n === 4 ? "tick end" : "tick", x: x(value), y: 64 });
      text.textContent = shown(value);
      svg.append(text);
    }
  }

  function choose(at) {
    state.statistic = at;
    picker.value = String(at);
    paint();
  }
  function go(cell) {
    state.cell = cell;
    inspect();
  }

  picker.addEventListener("change", () => choose(Number(picker.value)));
  scale.addEventListener("change", paint);
  cells.forEach((cell, at) => {
    cell.addEventListener("click", () => go(at));
    cell.addEventListener("mouseenter", () => { by("under").textContent = cell.title; });
    cell.addEventListener("mouseleave", () => { by("under").textContent = ""; });
    cell.addEventListener("keydown", (event) => {
      const across = data.heads.length;
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      let next = at + step;
      while (cells[next] && cells[next].disabled) next += step;
      if (!cells[next] || (Math.abs(step) === 1 && Math.floor(next / across) !== Math.floor(at / across))) return;
      go(next);
      cells[next].focus();
    });
  });
  document.querySelectorAll("[data-head]").forEach((button) => button.addEventListener("click", () => {
    state.cell = Number(button.dataset.head);
    choose(data.statistics.findIndex((one) => one.name === button.dataset.statistic));
    by("grid").scrollIntoView({ block: "start" });
  }));
  paint();
  document.documentElement.dataset.painted = "";
})();
