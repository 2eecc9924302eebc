// A part of the page as a figure for a paper: what stands there, in light colours, as SVG.
import { theme } from "../state/appearance";
import { escaped } from "./files";
import { measured, Pen, pens, within } from "./pen";
import { letters } from "../words";

/** What only works on a screen. */
const LEFT_OUT = "button:not(.plain), select, input, .menu, .strongest, .heading, .tools";
const MARGIN = 16;
/** Of a line of the caption, and of a letter at its size; those of Chinese and Japanese are twice as wide. */
const LINE = 15;
const LETTER = 6.4;
const CAPTION_LINES = 8;

/** A caption in lines of a width. */
function wrapped(text: string, wide: number): string[] {
  const lines = [""];
  let used = 0;
  for (const { segment } of new Intl.Segmenter(undefined, { granularity: "word" }).segment(text)) {
    const size = [...segment].reduce((sum, letter) => sum + (letter > "\u2e7f" ? 2 : 1) * LETTER, 0);
    if (used + size > wide && used && !/^\p{P}/u.test(segment)) {
      lines.push("");
      used = 0;
    }
    if (!used && !segment.trim()) continue;
    lines[lines.length - 1] += segment;
    used += size;
  }
  return lines.length > CAPTION_LINES ? [...lines.slice(0, CAPTION_LINES - 1), `${letters(lines[CAPTION_LINES - 1]).slice(0, -1).join("")}…`] : lines;
}

const isSeen = (colour: string): boolean => !/, 0\)$|^transparent$/.test(colour);
const box = ({ left, top, width, height }: DOMRect, rest: string): string => `<rect x="${left.toFixed(1)}" y="${top.toFixed(1)}" width="${width.toFixed(1)}" height="${height.toFixed(1)}" ${rest}/>`;
const line = (d: string, colour: string, wide = 1): string => `<path d="${d}" fill="none" stroke="${colour}" stroke-width="${wide}"/>`;

/** The lines of a text, each with its place. */
function lines(node: Text): [string, DOMRect][] {
  const range = document.createRange();
  const found: [string, DOMRect][] = [];
  for (const { 0: word, index } of node.data.matchAll(/\S+\s*/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.trimEnd().length);
    const place = range.getBoundingClientRect();
    const last = found.at(-1);
    if (last && Math.abs(last[1].top - place.top) < 1) last[0] += word;
    else found.push([word, place]);
    const now = found.at(-1)!;
    if (place.right > now[1].right) now[1] = new DOMRect(now[1].left, now[1].top, place.right - now[1].left, now[1].height);
  }
  return found;
}

function written(node: Text, { color, fontSize, fontWeight, fontStyle, fontFamily, direction }: CSSStyleDeclaration): string {
  const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = measured(`${fontWeight} ${fontSize} ${fontFamily}`, "x");
  return lines(node).map(([text, { left, right, top, height }]) =>
    `<text x="${(direction === "rtl" ? right : left).toFixed(1)}" y="${(top + (height * up) / (up + down)).toFixed(1)}" fill="${color}" font-size="${parseFloat(fontSize)}" font-weight="${fontWeight}" font-style="${node.length === 1 && node.parentElement!.matches("mi:not([mathvariant])") ? "italic" : fontStyle}"${direction === "rtl" ? ' direction="rtl"' : ""}>${escaped(text.trimEnd())}</text>`).join("");
}

/** A picture that is SVG on the page, with the colours that its style sheet gives it. */
function copied(node: SVGSVGElement, { left, top, width, height }: DOMRect): string {
  const copy = node.cloneNode(true) as SVGSVGElement;
  const parts = node.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((part, n) => {
    const style = getComputedStyle(parts[n]);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "paint-order", "fill-opacity", "stroke-opacity", "opacity", "font-size", "font-weight"]) part.setAttribute(name, style.getPropertyValue(name));
  });
  for (const [name, value] of Object.entries({ x: left, y: top, width, height })) copy.setAttribute(name, String(value));
  return new XMLSerializer().serializeToString(copy);
}

function drawn(node: Element): string {
  if (node.matches(LEFT_OUT) || !node.checkVisibility({ opacityProperty: true, visibilityProperty: true })) return "";
  const place = node.getBoundingClientRect();
  if (place.width <= 1 && place.height <= 1) return ""; // what screen readers read
  if (node instanceof HTMLCanvasElement) {
    return `<g transform="translate(${place.left} ${place.top})">${pens.peek()!.get(node)!.svg}</g>`;
  }
  if (node instanceof SVGSVGElement) return copied(node, place);
  const style = getComputedStyle(node);
  const { left, right, top, bottom } = place;
  let svg = isSeen(style.backgroundColor) ? box(place, `fill="${style.backgroundColor}" opacity="${style.opacity}" rx="${parseFloat(style.borderTopLeftRadius) || 0}"`) : "";
  const stops = style.backgroundImage.match(/rgb\([^)]*\)/g) ?? [];
  const step = place.width / stops.length;
  stops.forEach((colour, n) => { svg += box(new DOMRect(left + n * step, top, step + 0.3, place.height), `fill="${colour}"`); });
  const sides = { top: `M${left} ${top}H${right}`, bottom: `M${left} ${bottom}H${right}`, left: `M${left} ${top}V${bottom}`, right: `M${right} ${top}V${bottom}` };
  for (const [side, d] of Object.entries(sides)) {
    const [wide, colour] = ["width", "color"].map((name) => style.getPropertyValue(`border-${side}-${name}`));
    if (parseFloat(wide) && isSeen(colour)) svg += line(d, colour, parseFloat(wide));
  }
  // what a formula draws itself
  if (node.localName === "mfrac") {
    const [over, under] = Array.from(node.children, (part) => part.getBoundingClientRect());
    svg += line(`M${left} ${(over.bottom + under.top) / 2}H${right}`, style.color);
  }
  if (node.localName === "msqrt") {
    const from = node.firstElementChild!.getBoundingClientRect().left - 1;
    svg += line(`M${left} ${(top + bottom) / 2}L${(left + from) / 2} ${bottom}L${from} ${top + 1}H${right}`, style.color);
  }
  for (const child of node.childNodes) svg += child instanceof Text ? written(child, style) : child instanceof Element ? drawn(child) : "";
  const cut = style.overflowY !== "visible" && (node.scrollHeight > node.clientHeight || node.scrollWidth > node.clientWidth);
  return cut ? `${within(box(place, ""))}${svg}</g>` : svg;
}

let last: Promise<unknown> = Promise.resolve();

/** Such a figure, with a title above it and a sentence below; one after the other, for the page is in light colours meanwhile. */
export function figureOf(part: Element, title: string, below: string): Promise<string> {
  const now = last.then(() => figure(part, title, below));
  last = now.catch(() => undefined);
  return now;
}

async function figure(part: Element, title: string, below: string): Promise<string> {
  const before = theme.value;
  theme.value = "light";
  pens.value = new Map(Array.from(part.querySelectorAll("canvas"), (canvas) => [canvas, new Pen()]));
  try {
    for (let n = 0; n < 3; n++) await Promise.resolve(); // Preact draws elements anew before the browser paints
    const { left, width, bottom } = part.getBoundingClientRect();
    const { top } = Array.from(part.children).find((child) => !child.matches(LEFT_OUT))!.getBoundingClientRect();
    const height = bottom - top;
    const inside = drawn(part);
    const notes = wrapped(below, width);
    const [wide, tall] = [width + 2 * MARGIN, height + 44 + LINE * notes.length + MARGIN];
    const family = escaped(getComputedStyle(part).fontFamily);
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${wide.toFixed(0)}" height="${tall.toFixed(0)}" viewBox="0 0 ${wide.toFixed(0)} ${tall.toFixed(0)}" font-family="${family}" font-size="12" fill="#222" xml:space="preserve">` +
      `<title>${escaped(title)}</title><desc>${escaped(below)}</desc><rect width="100%" height="100%" fill="#fff"/>` +
      `<g transform="translate(${MARGIN - left} ${36 - top})">${inside}</g>` +
      `<text x="${MARGIN}" y="24" font-size="13" font-weight="600">${escaped(title)}</text>` +
      notes.map((text, n) => `<text x="${MARGIN}" y="${(height + 56 + LINE * n).toFixed(0)}" fill="#555">${escaped(text)}</text>`).join("") + "</svg>";
  } finally {
    pens.value = null;
    theme.value = before;
  }
}
