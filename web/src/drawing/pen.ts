// A canvas that writes SVG: what the page draws on its canvases, as boxes, lines and letters for a paper.
import { signal } from "@preact/signals";
import { escaped } from "./files";

/** While a figure is made: the canvases that are drawn into it. */
export const pens = signal<Map<HTMLCanvasElement, Pen> | null>(null);

const round = (x: number): string => String(Number(x.toFixed(2)));
const ruler = document.createElement("canvas").getContext("2d")!;

/** The width of a text in a font, and how far its letters reach above and below its line. */
export function measured(font: string, text: string): TextMetrics {
  ruler.font = font;
  return ruler.measureText(text);
}

/** An image of a canvas, or of a part of it, in which each of its pixels stays a box. */
function image(from: HTMLCanvasElement, [x, y, w, h]: number[], [left, top, width, height]: number[]): string {
  const part = Object.assign(document.createElement("canvas"), { width: w, height: h });
  part.getContext("2d")!.drawImage(from, x, y, w, h, 0, 0, w, h);
  return `<image x="${round(left)}" y="${round(top)}" width="${round(width)}" height="${round(height)}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${part.toDataURL()}"/>`;
}

let clips = 0;

/** What begins a group that is seen within a shape only. */
export const within = (shape: string): string => `<clipPath id="clip${++clips}">${shape}</clipPath><g clip-path="url(#clip${clips})">`;

/** As much of a canvas's context as the page uses. */
export class Pen {
  #svg = "";
  fillStyle = "#000";
  strokeStyle = "#000";
  lineWidth = 1;
  globalAlpha = 1;
  font = "10px sans-serif";
  textAlign = "start";
  textBaseline = "alphabetic";
  #path = "";
  /** Groups that are open, since the beginning and since each `save`. */
  #open = [0];

  reset(): this {
    this.#svg = "";
    this.#open = [0];
    return this;
  }

  get svg(): string { return this.#svg + "</g>".repeat(this.#open.reduce((sum, n) => sum + n)); }

  #put(shape: string, paint: string): void {
    this.#svg += `<${shape} ${paint}${this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : ""}/>`;
  }

  #group(begin: string): void {
    this.#svg += begin;
    this.#open[this.#open.length - 1]++;
  }

  get #stroke(): string { return `fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"`; }
  save(): void { this.#open.push(0); }
  restore(): void { this.#svg += "</g>".repeat(this.#open.pop()!); }
  translate(x: number, y: number): void { this.#group(`<g transform="translate(${round(x)} ${round(y)})">`); }
  rotate(angle: number): void { this.#group(`<g transform="rotate(${round((180 * angle) / Math.PI)})">`); }
  clip(): void { this.#group(within(`<path d="${this.#path}"/>`)); }
  beginPath(): void { this.#path = ""; }
  moveTo(x: number, y: number): void { this.#path += `M${round(x)} ${round(y)}`; }
  lineTo(x: number, y: number): void { this.#path += `L${round(x)} ${round(y)}`; }
  bezierCurveTo(...at: number[]): void { this.#path += `C${at.map(round).join(" ")}`; }
  rect(x: number, y: number, w: number, h: number): void { this.#path += `M${round(x)} ${round(y)}h${round(w)}v${round(h)}h${round(-w)}z`; }
  roundRect(x: number, y: number, w: number, h: number): void { this.rect(x, y, w, h); }
  stroke(): void { this.#put(`path d="${this.#path}"`, this.#stroke); }
  #box = (x: number, y: number, w: number, h: number): string => `rect x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}"`;
  strokeRect(x: number, y: number, w: number, h: number): void { this.#put(this.#box(x, y, w, h), this.#stroke); }
  fillRect(x: number, y: number, w: number, h: number): void { this.#put(this.#box(x, y, w, h), `fill="${this.fillStyle}"`); }
  measureText(text: string): TextMetrics { return measured(this.font, text); }
  fillText(text: string, x: number, y: number, most = Infinity): void {
    const { width } = this.measureText(text);
    const [, weight, size] = /^(?:(\d+) )?([\d.]+)px/.exec(this.font)!;
    const anchor = { left: "start", right: "end", center: "middle" }[this.textAlign] ?? "start";
    this.#svg += `<text x="${round(x)}" y="${round(y + (this.textBaseline === "middle" ? 0.36 * Number(size) : 0))}" text-anchor="${anchor}" fill="${this.fillStyle}" font-size="${size}"${weight ? ` font-weight="${weight}"` : ""}${this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : ""}${width > most ? ` textLength="${round(most)}" lengthAdjust="spacingAndGlyphs"` : ""}>${escaped(text)}</text>`;
  }
  drawImage(from: HTMLCanvasElement, ...at: number[]): void {
    this.#svg += image(from, at.length > 4 ? at.slice(0, 4) : [0, 0, from.width, from.height], at.slice(-4));
  }
}
