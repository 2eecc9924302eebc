// The strip of the home page. It opens on recorded answers; a sentence that was typed is answered by the model, which is fetched then.
const RAMPS = {
  light: [[0, "#ffffff"], [0.15, "#eef4fb"], [0.3, "#cde0f6"], [0.52, "#7eaee6"], [0.78, "#2f62b5"], [1, "#13223d"]],
  dark: [[0, "#101318"], [0.15, "#16202f"], [0.3, "#1d3557"], [0.52, "#2f66b0"], [0.78, "#6fb2f5"], [1, "#e6f3ff"]],
};
const HEADS = Array.from({ length: 16 }, (_, n) => [n >> 2, n & 3]);
const LEAST = 0.04; // weight of the faintest arc
const SLICE = 12; // milliseconds of background work between two frames

const dark = () => document.body.dataset.mdColorScheme === "slate";
const short = (x) => (x < 0.005 ? "0" : x > 0.995 ? "1" : x.toFixed(2).slice(1));
const called = ([layer, head]) => `${layer}.${head}`;

/** A weight's colour: the ramp's at its square root, as on headscope's page. */
function ink(weight) {
  const stops = RAMPS[dark() ? "dark" : "light"];
  const t = Math.sqrt(Math.min(1, Math.max(0, weight)));
  const next = Math.max(1, stops.findIndex(([at]) => t <= at));
  const [[from, a], [to, b]] = [stops[next - 1], stops[next]];
  const share = (t - from) / (to - from);
  return [1, 3, 5].map((n) => Math.round(parseInt(a.slice(n, n + 2), 16) * (1 - share) + parseInt(b.slice(n, n + 2), 16) * share));
}

/** Black or white, whichever reads better on a colour. */
function over(colour) {
  const [r, g, b] = colour.map((x) => ((x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.19 ? "#14171c" : "#ffffff";
}

/** An element: `make("b", { class: "x" }, "text", child)`. Text is text, never markup. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** A sentence with places such as {word}, as text and elements. */
function filled(sentence, values) {
  return sentence.split(/(\{\w+\})/).map((part) => (part.startsWith("{") ? values[part.slice(1, -1)] ?? part : part));
}

const unpacked = ({ weights, ...answer }) => {
  const bytes = Uint8Array.from(atob(weights), (sign) => sign.charCodeAt(0));
  return { ...answer, weights: Float64Array.from(new Uint16Array(bytes.buffer), (x) => x / 65535) };
};

/** The model in the page; see web/src/encoder. */
class Live {
  constructor(model) {
    this.model = model;
    this.wordpiece = new encoder.WordPiece(model.about.vocabulary);
  }

  static async load(address) {
    await new Promise((done, failed) => document.head.append(make("script", { src: address, onload: done, onerror: failed })));
    const gzip = Uint8Array.from(atob(headscopeModel), (sign) => sign.charCodeAt(0));
    const plain = new Blob([gzip]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Live(new encoder.Model(new Uint8Array(await new Response(plain).arrayBuffer())));
  }

  /** What docs/tools/strip.py records of an example, of any text; `without` is left to do. */
  answer(text, off) {
    const edits = off.map(([layer, head]) => ({ layer, head, how: "zero" }));
    const encoded = this.wordpiece.encode(text);
    const pass = encoder.forward(this.model, encoded.ids, encoded.segments, edits);
    const { heads, d } = this.model.about.config;
    const [wide, tokens] = [d / heads, pass.tokens];
    const weights = new Float64Array(HEADS.length * tokens * tokens);
    HEADS.forEach(([layer, head], n) => {
      const { q, k, lse } = pass.layers[layer];
      for (let i = 0; i < tokens; i++) {
        for (let j = 0; j < tokens; j++) {
          let score = 0;
          for (let x = 0; x < wide; x++) score += q[(head * tokens + i) * wide + x] * k[(head * tokens + j) * wide + x];
          weights[(n * tokens + i) * tokens + j] = Math.exp(score / Math.sqrt(wide) - lse[head * tokens + i]);
        }
      }
    });
    const mask = encoded.ids.indexOf(this.model.about.mask);
    const words = encoded.tokens.map((token, n) => (encoded.spans[n] ? text.slice(...encoded.spans[n]) : token));
    const rest = { pass, edits, guess: mask < 0 ? [] : this.guess(pass, mask, 5), without: {} };
    return { text, off, words, special: encoded.special, weights, mask, ...rest };
  }

  guess(pass, mask, most) {
    const shares = encoder.softmax(encoder.maskedWord(this.model, pass.last, mask));
    const order = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]).slice(0, most);
    return order.map((id) => [this.model.about.vocabulary.tokens[id], shares[id]]);
  }

  /** The likeliest word without a head, beside those that are silenced. */
  without({ pass, edits, mask }, [layer, head]) {
    return this.guess(encoder.rerun(this.model, pass, [...edits, { layer, head, how: "zero" }]), mask, 1)[0];
  }
}

class Strip {
  constructor(section) {
    const held = JSON.parse(section.querySelector("script").textContent);
    this.words = held.words;
    this.examples = held.examples.map(([text, layer, head, other]) => ({ text, head: [layer, head], other }));
    this.recorded = held.answers.map(unpacked);
    this.mb = held.mb;
    this.address = section.dataset.model;
    this.section = section;
    this.off = [];
    this.at = this.examples[0].head; // the head whose weights the arcs show
    this.looks = null; // the word that looks; null for the mask
    this.turn = 0;
    this.build();
    this.say(this.examples[0].text, this.examples[0].head);
    new MutationObserver(() => this.paint()).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
    new ResizeObserver(() => this.arcs()).observe(this.line);
  }

  build() {
    const { words } = this;
    const link = (text, act) => make("button", { type: "button", class: "strip-link", onclick: act }, text);
    this.input = make("input", { "aria-label": words.box, spellcheck: "false", autocomplete: "off", maxlength: 300, oninput: () => this.typed() });
    this.state = make("span", { class: "strip-note", role: "status" });
    this.heading = make("p", { class: "strip-answer", "aria-live": "polite" });
    this.line = make("div", { class: "strip-words" });
    this.guesses = make("div", { class: "strip-guesses" });
    this.look = make("p", { class: "strip-note" });
    this.turning = make("p", { class: "strip-turning" });
    this.grey = make("span", { class: "strip-note" });
    this.tiles = HEADS.map((head) => this.tile(head));
    const tries = this.examples.map(({ text, head }, n) => link(words.examples[n], () => this.say(text, head)));
    const then = [
      link(words.one, () => this.silence(this.example()?.head ?? this.at, true)),
      link(words.swap, () => this.swap()),
      link(words.all, () => this.say(this.input.value, this.at)),
    ];
    const rows = [0, 1, 2, 3].flatMap((layer) => [make("span", { class: "strip-note" }, String(layer)), ...this.tiles.slice(4 * layer, 4 * layer + 4)]);
    const top = [make("span"), ...[0, 1, 2, 3].map((head) => make("span", { class: "strip-note" }, String(head)))];
    const foot = { install: make("b", {}, "pip install ."), live: make("b", {}, "headscope view - --html FILE") };
    const box = make("div", { class: "strip-box" },
      make("label", { class: "strip-type" }, this.input, this.state),
      make("div", { class: "strip-tries" }, make("span", { class: "strip-note" }, words.try), ...tries, make("span", { class: "strip-note" }, words.then), ...then),
      this.heading, this.line,
      make("div", { class: "strip-sides" },
        make("div", {}, make("p", {}, make("b", {}, words.heads), " ", make("span", { class: "strip-note" }, `· ${words.beside}`)), make("div", { class: "strip-heads" }, ...top, ...rows)),
        make("div", {}, make("p", {}, make("b", {}, words.under), " ", this.grey), this.guesses, this.look, this.turning)));
    this.section.replaceChildren(make("p", {}, words.lead), box, make("div", { class: "strip-foot strip-note" }, ...words.foot.map((line) => make("span", {}, ...filled(line, foot)))));
  }

  tile(head) {
    const name = called(head);
    const canvas = make("canvas", { "aria-hidden": "true" });
    const over = () => { this.at = head; this.arcs(); };
    return make("button", { type: "button", "data-head": name, "aria-pressed": "false", title: this.words.silence.replace("{head}", name),
      onclick: () => this.silence(head), onmouseenter: over, onfocus: over }, canvas, make("span", {}, make("b", {}, name), make("i")));
  }

  example() {
    return this.examples.find(({ text, other }) => [text, other].includes(this.input.value));
  }

  /** A sentence with every head on. */
  say(text, head) {
    this.input.value = text;
    this.at = head;
    this.off = [];
    this.looks = null;
    this.answer();
  }

  typed() {
    this.off = [];
    this.looks = null;
    this.answer();
  }

  swap() {
    const example = this.example() ?? this.examples[0];
    this.say(this.input.value === example.text ? example.other : example.text, example.head);
  }

  silence(head, only = false) {
    const was = this.off.some((one) => called(one) === called(head));
    this.off = only ? [head] : was ? this.off.filter((one) => called(one) !== called(head)) : [...this.off, head];
    this.at = head;
    this.answer();
  }

  found(off) {
    const names = off.map(called).join();
    return this.recorded.find((one) => one.text === this.input.value && one.off.map(called).join() === names);
  }

  /** Show the answer on the sentence: the recorded one, otherwise the model's, which is fetched once. */
  async answer() {
    const turn = ++this.turn;
    const began = performance.now();
    if (!this.input.value.trim()) return this.trouble(this.words.empty);
    const recorded = this.found(this.off);
    if (recorded && (!this.off.length || this.found([]))) {
      this.show(recorded, this.found([]), this.words.recorded);
      return undefined;
    }
    try {
      if (!this.live) {
        if (!("DecompressionStream" in window)) return this.trouble(this.words.unfit);
        this.state.textContent = this.words.loading.replace("{mb}", this.mb);
        this.loading ??= Live.load(this.address).catch(() => null);
        this.live = await this.loading;
        if (turn !== this.turn) return undefined;
        if (!this.live) return this.trouble(this.words.failed);
      }
      const now = this.live.answer(this.input.value, this.off);
      const took = { n: now.words.length, ms: Math.round(performance.now() - began) };
      this.show(now, this.off.length ? this.live.answer(this.input.value, []) : now, filled(this.words.took, took).join(""));
      await this.each(turn);
    } catch (error) {
      if (turn === this.turn) this.trouble(error instanceof Error ? error.message : String(error));
    }
    return undefined;
  }

  /** The guess without each head, a few at a time. */
  async each(turn) {
    if (this.now.mask < 0) return;
    let began = performance.now();
    for (const head of [...HEADS].reverse()) {
      if (performance.now() - began > SLICE) {
        await new Promise(requestAnimationFrame);
        began = performance.now();
      }
      if (turn !== this.turn) return;
      this.now.without[called(head)] = this.live.without(this.now, head);
    }
    this.paint();
  }

  trouble(text) {
    this.state.textContent = text;
  }

  show(now, before, state) {
    this.now = now;
    this.before = before;
    this.state.textContent = state;
    this.paint();
  }

  paint() {
    if (!this.now) return;
    const { words, mask, weights } = this.now;
    const size = words.length;
    this.tiles.forEach((tile, n) => {
      const name = called(HEADS[n]);
      const off = this.off.some((one) => called(one) === name);
      const canvas = tile.querySelector("canvas");
      canvas.width = canvas.height = size;
      const image = new ImageData(size, size);
      for (let i = 0; i < size * size; i++) image.data.set([...ink(weights[n * size * size + i]), 255], 4 * i);
      canvas.getContext("2d").putImageData(image, 0, 0);
      const without = this.now.without[name];
      const turns = without && !off && without[0] !== this.now.guess[0][0];
      tile.className = `${off ? "off" : ""} ${turns ? "turns" : ""}`;
      tile.setAttribute("aria-pressed", String(off));
      tile.querySelector("i").textContent = off ? this.words.off : without ? `${without[0]}\n${short(without[1])}` : "";
    });
    this.head();
    this.bars();
    this.turns();
    this.line.replaceChildren(...words.map((word, n) => make("button", { type: "button", class: this.now.special[n] ? "special" : "",
      onmouseenter: () => this.from(n), onfocus: () => this.from(n), onclick: () => this.from(n) }, make("span", {}, word), make("small", {}, "·"))));
    this.line.append(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    if (this.looks === null || this.looks >= size) this.looks = Math.max(0, mask);
    this.arcs();
  }

  /** The sentence that says what came out. */
  head() {
    const { guess } = this.now;
    if (!guess.length) return this.heading.replaceChildren(this.words.no_mask);
    const [[word, share], [first, before]] = [guess[0], this.before.guess[0]];
    const heads = this.off.map(called).join(" + ");
    const says = !this.off.length ? this.words.guesses : word === first ? this.words.still : this.words.turns;
    const old = word === first ? short(before) : first;
    return this.heading.replaceChildren(...filled(says, { heads, before: old, after: short(share), word: make("em", {}, word) }));
  }

  bars() {
    const [now, before] = [this.now.guess, this.off.length ? this.before.guess : null];
    const share = (of, word) => of.find(([one]) => one === word)?.[1] ?? 0;
    const names = [...new Set([...now.slice(0, before ? 3 : 5), ...(before ?? []).slice(0, 3)].map(([word]) => word))].slice(0, 5);
    this.grey.textContent = before ? `· ${this.words.grey}` : "";
    this.guesses.replaceChildren(...names.map((word) => make("div", {}, make("span", {}, word),
      make("span", {}, make("i", { style: `width:${100 * share(now, word)}%` }), ...(before ? [make("i", { class: "was", style: `width:${100 * share(before, word)}%` })] : [])),
      make("span", {}, short(share(now, word))))));
  }

  turns() {
    const { without, guess } = this.now;
    const turning = HEADS.filter((head) => !this.off.length && without[called(head)] && without[called(head)][0] !== guess[0]?.[0]);
    const all = HEADS.every((head) => without[called(head)]);
    if (this.off.length || !all) return this.turning.replaceChildren();
    if (!turning.length) return this.turning.replaceChildren(this.words.none);
    return this.turning.replaceChildren(`${this.words.turning} `, ...turning.map((head) => make("button", { type: "button", class: "strip-chip", onclick: () => this.silence(head) },
      make("b", {}, called(head)), ` → ${without[called(head)][0]} ${short(without[called(head)][1])}`)));
  }

  from(word) {
    this.looks = word;
    this.arcs();
  }

  /** The weights of one row of one head: ink behind the words, numbers below, arcs above. */
  arcs() {
    if (!this.now) return;
    const { weights, words } = this.now;
    const size = words.length;
    const n = 4 * this.at[0] + this.at[1];
    const row = weights.subarray((n * size + this.looks) * size, (n * size + this.looks + 1) * size);
    const buttons = [...this.line.querySelectorAll("button")];
    const best = [...row.keys()].filter((k) => k !== this.looks && !this.now.special[k]).sort((a, b) => row[b] - row[a])[0];
    buttons.forEach((button, k) => {
      const colour = ink(row[k]);
      const [word, number] = button.children;
      button.classList.toggle("looks", k === this.looks);
      button.classList.toggle("best", k === best);
      word.style.cssText = k === this.looks ? "" : `background:rgb(${colour});color:${row[k] < 0.02 ? "inherit" : over(colour)}`;
      number.textContent = short(row[k]) === "0" ? "·" : short(row[k]);
    });
    this.tiles.forEach((tile, at) => tile.classList.toggle("at", at === n));
    this.look.replaceChildren(...filled(this.words.looks, { head: make("b", {}, called(this.at)), word: make("em", {}, words[this.looks]) }));
    const box = this.line.getBoundingClientRect();
    const middle = (k) => { const at = buttons[k].firstChild.getBoundingClientRect(); return [at.left + at.width / 2 - box.left, at.top - box.top]; };
    const [x, y] = middle(this.looks);
    const svg = this.line.querySelector("svg");
    svg.replaceChildren(...[...row.keys()].filter((k) => k !== this.looks && row[k] >= LEAST).sort((a, b) => row[a] - row[b]).flatMap((k) => {
      const [end, level] = middle(k);
      if (Math.abs(level - y) > 4) return []; // on another line of a phone
      const high = Math.min(40, 14 + Math.abs(end - x) * 0.1) * 1.25;
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const drawn = { d: `M${x} ${y}C${x} ${y - high},${end} ${y - high},${end} ${y}`, fill: "none", "stroke-width": 1 + 5 * row[k], stroke: k === best ? "var(--strip-pin)" : `rgb(${ink(Math.max(0.12, row[k]))})` };
      for (const [key, value] of Object.entries(drawn)) path.setAttribute(key, value);
      return [path];
    }));
  }
}

for (const section of document.querySelectorAll("section.strip")) new Strip(section);
