// Complaints about the page: one for each text or control that sticks out, is cut off, or lies on another, and each broken number.
() => {
  /** What may be wider than its place, because it scrolls sideways by itself. */
  const SIDEWAYS = ".across, .gridtable, .numbers, .step header";
  const UNSEEN = ".unseen, .tucked, .skip, .said, .none, svg, option, noscript, [aria-hidden=true]";
  const complaints = new Set();

  const classes = (element) => [...element.classList].map((one) => `.${one}`).join("");
  const name = (element) => {
    if (element.dataset.test) return `${element.localName}[data-test=${element.dataset.test}]`;
    const outer = element.parentElement;
    return `${classes(element) ? "" : `${outer.localName}${classes(outer)} > `}${element.localName}${classes(element)}`;
  };
  const called = ({ element, text }) => `${name(element)} "${text.slice(0, 40)}"`;
  const seen = (element) =>
    element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && !element.closest(UNSEEN);

  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) complaints.add(`the page is ${root.scrollWidth} px wide`);

  // Whatever is read or pressed: each line of a text, each control.
  const parts = [];
  const page = document.getElementById("page");
  const walker = document.createTreeWalker(page, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { currentNode: node } = walker;
    const [element, text] = [node.parentElement, node.data.trim()];
    if (!text || !seen(element)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width > 0) parts.push({ box, element, text, from: element });
    for (const { 0: written, index } of node.data.matchAll(/[+−]?\d+[.,]\d+/g)) {
      range.setStart(node, index);
      range.setEnd(node, index + written.length);
      const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
      if (lines.size > 1) complaints.add(`${called({ element, text: written })} is broken over ${lines.size} lines`);
    }
  }
  for (const element of page.querySelectorAll("button, select, input, .button")) {
    const box = element.getBoundingClientRect();
    const text = element.textContent || element.type;
    if (seen(element) && box.width > 2) parts.push({ box, element, text, from: element.parentElement });
  }

  // The same boxes stand around many texts.
  const boxes = new Map();
  const boxOf = (element) => {
    if (!boxes.has(element)) {
      const { display, overflowX, overflowY, textOverflow } = getComputedStyle(element);
      boxes.set(element, {
        frame: display === "contents" || display === "inline" ? null : element.getBoundingClientRect(),
        clips: overflowX !== "visible",
        overflowY,
        shortens: textOverflow === "ellipsis",
        ends: overflowX !== "visible" || element.matches(".panel, button"),
        sideways: element.matches(SIDEWAYS),
      });
    }
    return boxes.get(element);
  };

  // Outwards from each: what cuts it off?
  const left = [];
  for (const part of parts) {
    const { left: x, right, top, bottom } = part.box;
    const here = { left: x, right, top, bottom };
    let [across, down] = [true, true]; // not inside anything that scrolls so far
    let [cut, whole] = [null, false];
    for (let outer = part.from; outer !== root; outer = outer.parentElement) {
      whole ||= (outer.title ?? "").includes(part.text);
      const { frame, clips, overflowY, shortens, ends, sideways } = boxOf(outer);
      if (!frame) continue;
      if (ends && across && (here.right > frame.right + 1 || here.left < frame.left - 1)) {
        if (shortens) cut ??= outer;
        else if (!sideways) complaints.add(`${called(part)} sticks out of ${name(outer)}`);
      }
      if (overflowY === "hidden" && down && (here.bottom > frame.bottom + 2 || here.top < frame.top - 2)) {
        complaints.add(`${called(part)} is cut off by the edge of ${name(outer)}`);
      }
      if (sideways) across = false;
      if (overflowY === "auto" || overflowY === "scroll") down = false;
      if (clips) [here.left, here.right] = [Math.max(here.left, frame.left), Math.min(here.right, frame.right)];
      if (overflowY !== "visible") {
        [here.top, here.bottom] = [Math.max(here.top, frame.top), Math.min(here.bottom, frame.bottom)];
      }
    }
    if (cut && !whole) complaints.add(`${called(part)} is cut short, and no tooltip has all of it`);
    if (here.right - here.left > 1 && here.bottom - here.top > 1) left.push({ ...part, here });
  }

  // What lies on another? From the top down, so that only neighbours are compared.
  // what may lie over others, though not its own texts over one another
  const over = ({ element }) => element.closest(".save, dialog, .screens, .gridtable, .numbers, .trouble, .edge button");
  left.sort((a, b) => a.here.top - b.here.top);
  left.forEach((a, n) => {
    for (let at = n + 1; at < left.length && left[at].here.top < a.here.bottom - 4; at++) {
      const b = left[at];
      const across = Math.min(a.here.right, b.here.right) - Math.max(a.here.left, b.here.left);
      const down = Math.min(a.here.bottom, b.here.bottom) - b.here.top;
      if (across <= 2 || down <= 4 || over(a) !== over(b)) continue;
      if (a.element.contains(b.element) || b.element.contains(a.element)) continue;
      complaints.add(`${called(a)} and ${called(b)} overlap`);
    }
  });
  return [...complaints];
};
