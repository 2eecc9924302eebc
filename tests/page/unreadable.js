// Complaints about the page: one for each text or control that sticks out, is cut off, or lies on another.
() => {
  /** What may be wider than its place, because it scrolls sideways by itself. */
  const SIDEWAYS = ".steps, .across, .gridtable, .numbers";
  const UNSEEN = ".unseen, .skip, .said, .none, svg, option, noscript, [aria-hidden=true]";
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
  }
  for (const element of page.querySelectorAll("button, select, input, .button")) {
    const box = element.getBoundingClientRect();
    const text = element.textContent || element.type;
    if (seen(element) && box.width > 2) parts.push({ box, element, text, from: element.parentElement });
  }

  // Outwards from each: what cuts it off?
  const left = [];
  for (const part of parts) {
    const { left: x, right, top, bottom } = part.box;
    const here = { left: x, right, top, bottom };
    let [across, down] = [true, true]; // not inside anything that scrolls so far
    let [cut, whole] = [null, false];
    for (let outer = part.from; outer !== root; outer = outer.parentElement) {
      whole ||= outer.title.includes(part.text);
      const style = getComputedStyle(outer);
      if (style.display === "contents" || style.display === "inline") continue;
      const frame = outer.getBoundingClientRect();
      const clips = style.overflowX !== "visible";
      const ends = clips || outer.matches(".panel, button");
      if (ends && across && (here.right > frame.right + 1 || here.left < frame.left - 1)) {
        if (style.textOverflow === "ellipsis") cut ??= outer;
        else if (!outer.matches(SIDEWAYS)) complaints.add(`${called(part)} sticks out of ${name(outer)}`);
      }
      if (style.overflowY === "hidden" && down && (here.bottom > frame.bottom + 2 || here.top < frame.top - 2)) {
        complaints.add(`${called(part)} is cut off by the edge of ${name(outer)}`);
      }
      if (outer.matches(SIDEWAYS)) across = false;
      if (style.overflowY === "auto" || style.overflowY === "scroll") down = false;
      if (clips) [here.left, here.right] = [Math.max(here.left, frame.left), Math.min(here.right, frame.right)];
      if (style.overflowY !== "visible") {
        [here.top, here.bottom] = [Math.max(here.top, frame.top), Math.min(here.bottom, frame.bottom)];
      }
    }
    if (cut && !whole) complaints.add(`${called(part)} is cut short, and no tooltip has all of it`);
    if (here.right - here.left > 1 && here.bottom - here.top > 1) left.push({ ...part, here });
  }

  // What may lie over a panel's end as it scrolls.
  const over = ({ element }) => element.closest(".save, dialog") !== null;
  left.forEach((a, n) => {
    for (const b of left.slice(n + 1)) {
      if (a.element.contains(b.element) || b.element.contains(a.element) || over(a) || over(b)) continue;
      const across = Math.min(a.here.right, b.here.right) - Math.max(a.here.left, b.here.left);
      const down = Math.min(a.here.bottom, b.here.bottom) - Math.max(a.here.top, b.here.top);
      if (across > 2 && down > 4) complaints.add(`${called(a)} and ${called(b)} overlap`);
    }
  });
  return [...complaints];
};
