// What the grid is asked: orders of heads, slots of the grid, sets in the address, weights between sets of tokens.
import { expect, test } from "vitest";
import { signal } from "@preact/signals";
import { FIELDS } from "../src/state/state";
import { among, field, fromHash, isFresh, share, toHash, toShare, whole, wholes, type Fields } from "../src/state/hash";
import { maskOf } from "../src/text/masking";
import { byNumber, nextPlace } from "../src/heads/order";
import { corner, end, short, slots } from "../src/panels/slots";
import { makeShown, placed, readable, wordOf, type Label } from "../src/text/shown";
import { sees, size, viewRows } from "../src/trace/cells";
import { massBetween, massesBetween, type Sets } from "../src/trace/masses";
import { measure, siftedShare } from "../src/trace/measures";
import { fromBase64, toBase64 } from "../src/trace/safetensors";
import { plainName, type Axis, type TraceInfo } from "../src/trace/trace";
import { held, info, labelOf, OPEN, S, viewOf, weights } from "./fixture";

test("heads without a number have no rank, equal ones stand by place", () => {
  expect(byNumber([0.2, NaN, 0.9, 0.2], true)).toEqual([2, 0, 3]);
  expect(byNumber([0.2, NaN, 0.9, 0.2], false)).toEqual([0, 3, 2]);
});

test("a walk begins at the best, or after it where that is looked at, and ends at the ends", () => {
  const order = [4, 2, 7];
  expect(nextPlace(order, 9, false, 1)).toBe(4);
  expect(nextPlace(order, 4, false, 1)).toBe(2);
  expect(nextPlace(order, 7, false, 1)).toBe(4);
  expect(nextPlace(order, 4, true, 1)).toBe(2);
  expect([nextPlace(order, 7, true, 1), nextPlace(order, 2, true, -1), nextPlace(order, 4, true, -1)]).toEqual([7, 4, 4]);
  expect(nextPlace([], 4, true, 1)).toBeNull();
});

test("slots fill the panel and never lie on one another", () => {
  for (const [columns, rows, width, height] of [[6, 12, 360, 500], [12, 12, 284, 600], [12, 22, 284, 400], [2, 2, 284, 600], [16, 24, 220, 0], [128, 24, 648, 530], [128, 1, 358, 0]]) {
    for (const labelled of [false, true]) {
      for (const pictures of [false, true]) {
        const now = slots(columns, rows, width, height, labelled, pictures);
        expect(now.across * columns).toBeLessThanOrEqual(width);
        expect(corner(now, columns - 1)[0] + now.width).toBeLessThanOrEqual(width);
        expect(now.side).toBeLessThanOrEqual(now.across);
        expect(now.label + now.side + now.meter + now.number).toBeLessThanOrEqual(now.down);
        expect(now.label + now.height).toBeLessThanOrEqual(now.down);
        if (height) expect(now.total).toBeLessThanOrEqual(height);
        expect(corner(now, columns)[1] - corner(now, 0)[1]).toBe(now.down);
        if (!pictures) expect(now.side).toBe(0);
      }
    }
  }
  expect(slots(6, 12, 360, 500, false, true).total).toBeGreaterThan(440);
  // twelve heads in a row, as drawn: pictures of about 40 px, a meter, a number
  const drawn = slots(12, 6, 552, 400, false, true);
  expect([drawn.total <= 400, drawn.meter, drawn.number, drawn.side]).toEqual([true, 3, 15, 40]);
});

test("of three forms the room decides: a number under its picture, beside it, or alone", () => {
  const forms = (columns: number, rows: number, width: number, height: number) => {
    const { form, side, written } = slots(columns, rows, width, height, false, true);
    return [form, side, written];
  };
  // six layers; twelve and twenty-four on a laptop's low screen and on a high one, as drawn; ESM-2's shape
  expect(forms(12, 6, 548, 400)).toEqual(["under", 40, true]);
  expect(forms(12, 12, 572, 350)).toEqual(["beside", 21, true]);
  expect(forms(12, 12, 648, 540)).toEqual(["beside", 28, true]);
  expect(forms(16, 24, 572, 380)).toEqual(["value", 0, true]);
  expect(forms(16, 24, 648, 530)).toEqual(["beside", 15, true]);
  expect(forms(40, 36, 572, 380)).toEqual(["value", 0, false]);
  // a finger's tile, and numbers with a sign, which are too wide to stand beside
  expect(forms(12, 12, 358, 554)).toEqual(["under", 22, true]);
  expect(slots(12, 12, 648, 540, false, true, true).form).toBe("under");
  expect(slots(16, 24, 648, 530, false, true, true).form).toBe("value");
  // sorted, each head is named: above its tile, or instead of its number
  const named = (height: number) => { const now = slots(16, 24, 648, height, true, true); return [now.form, now.label, now.named]; };
  expect([named(530), named(900)]).toEqual([["value", 0, true], ["beside", 16, false]]);
  // a layer is never less than can be told from the next
  expect(slots(16, 60, 572, 380, false, true)).toMatchObject({ form: "value", down: 8, total: 496 });
});

test("numbers in slots are short; small ones keep three digits of the largest", () => {
  expect([0.688, 0.004, 1, -0.25, 12.34, 123.4, NaN].map((value) => short(value))).toEqual([".69", "0", "1.0", "−.25", "12", "123", "–"]);
  expect([0.175, -0.0023, 0.0001].map((value) => short(value, 0.175))).toEqual([".175", "−.002", "0"]);
  expect([0.0142, -0.0002].map((value) => short(value, 0.0142))).toEqual([".0142", "−.0002"]);
  expect([7.31, -0.25].map((value) => short(value, 7.31))).toEqual(["7.3", "−.25"]);
});

test("the ends of a scale have neither noughts nor a point at their end", () => {
  expect([0, 1, 10, -1, 0.5, 1.0003, 0.9999, 9.97, 10.2, 0.205, -1.04, 0.004].map(end)).toEqual(["0", "1", "10", "−1", ".5", "1", "1", "10", "10", ".205", "−1", ".004"]);
});

test("sets of tokens in an address", () => {
  const none: readonly number[] = [];
  const { read, write, first } = wholes(signal<readonly number[]>([3]), none);
  expect(first).toBe(none);
  expect([read("5.3.3.0"), read("7"), read("x"), read(""), read("1..2")]).toEqual([[0, 3, 5], [7], undefined, undefined, undefined]);
  expect(write([3, 5])).toBe("3.5");
});

test("a hash sets what it can, and names what it can't", () => {
  const [pin, mass, theme] = [signal<number | null>(null), signal(0.7), signal("auto")];
  const fields = { q: field(pin, whole), mass: share(mass), theme: among(theme, ["auto", "dark"]) } as unknown as Fields;
  expect(fromHash(fields, "#q=4&mass=2&theme=dark&what=ever")).toEqual(["what=ever", "mass=2"]);
  expect([pin.value, mass.value, theme.value]).toEqual([4, 0.7, "dark"]);
  mass.value = 0.5;
  expect(toHash(fields)).toBe("q=4&mass=0.5&theme=dark");
  expect(toHash(fields, (name) => name === "q")).toBe("q=4");
  expect(toShare(fields)).toBe("q=4&mass=0.5");
  expect(fromHash(fields, "")).toEqual([]);
  // the grid of a comparison alone asks this
  expect(["gap", "change"].map(FIELDS.by.read)).toEqual([undefined, "change"]);
  expect([pin.value, mass.value, theme.value]).toEqual([null, 0.7, "auto"]);
});

test("base64 is Node's, with and without the browser's own", () => {
  const bytes = Uint8Array.from({ length: 70_000 }, (_, n) => (n * 31) % 256);
  const native = Object.getOwnPropertyDescriptor(Uint8Array.prototype, "toBase64");
  for (const size of [0, 1, 2, 3, 0x6000, 0x6001, 70_000]) {
    const expected = Buffer.from(bytes.subarray(0, size)).toString("base64");
    expect(toBase64(bytes.subarray(0, size))).toBe(expected);
    expect(Buffer.compare(fromBase64(expected), bytes.subarray(0, size))).toBe(0);
    if (native) delete (Uint8Array.prototype as unknown as Record<string, unknown>).toBase64;
    expect(toBase64(bytes.subarray(0, size))).toBe(expected);
    if (native) Object.defineProperty(Uint8Array.prototype, "toBase64", native);
  }
});

test("an address that names only theme and language is a fresh one", () => {
  expect(["", "#", "#theme=dark&lang=ja", "#l=0", "theme=dark&q=2"].map(isFresh)).toEqual([true, true, true, false, false]);
});

test("weights between sets are the fixture's, added over keys, averaged over queries", () => {
  const [layers, heads] = [weights.length, weights[0].length];
  const [queries, keys] = [[1, 4, 2], [0, 3]];
  for (let layer = 0; layer < layers; layer++) {
    for (let head = 0; head < heads; head++) {
      const rows = Array.from({ length: S }, (_, i) => weights[layer][head].slice(i * S, (i + 1) * S));
      const kept = rows[0].map((_, j) => j).filter((j) => j !== 1);
      const sum = (i: number, places: number[]): number => places.reduce((total, j) => total + rows[i][j], 0);
      for (const over of [null, kept]) {
        const sets = { queries, keys, kept: over, normed: false };
        const expected = queries.reduce((total, i) => total + sum(i, keys) / (over ? sum(i, over) || Infinity : 1), 0) / queries.length;
        expect(massBetween(held.some(layer, head, queries), sets)).toBeCloseTo(expected, 3);
      }
    }
  }
});

test("weights times norms: the norms of the keys that are asked for, over the plain weight that is kept", () => {
  // weights 1/3, 1/3, 1/3; 1/8, 2/8, 5/8; 1/134, 8/134, 125/134
  const [q, k] = [Float32Array.of(0, 1, 3), Float32Array.of(0, Math.log(2), Math.log(5))];
  const lse = Float64Array.of(Math.log(3), Math.log(8), Math.log(134));
  const head = { q, k, lse, bias: null, terms: null, valueNorms: Float32Array.of(2, 3, 0.5), rule: OPEN, d: 1, queries: 3, keys: 3 };
  const some = { head, q, keysAt: (places: ArrayLike<number>) => Float32Array.from(places, (place) => k[place]) };
  const sets = (keys: number[], kept: number[] | null, normed: boolean): Sets => ({ queries: [0, 1, 2], keys, kept, normed });
  const are = (found: number[], expected: number[]): void => expected.forEach((mass, n) => expect(found[n]).toBeCloseTo(mass, 5));
  are(massesBetween(some, sets([0, 2], null, true)), [2.5 / 3, (2 + 2.5) / 8, (2 + 62.5) / 134]);
  are(massesBetween(some, sets([0, 2], null, false)), [2 / 3, 6 / 8, 126 / 134]);
  are(massesBetween(some, sets([1], [0, 1], true)), [3 / 2, 6 / 3, 24 / 9]);
  are(massesBetween(some, sets([0], [0], true)), [2, 2, 2]); // of the last query hardly any weight is kept
  expect(massBetween(some, sets([1], [0, 1], true))).toBeCloseTo((1.5 + 2 + 24 / 9) / 3, 5);
});

const label = (tokens: number[]): Label => labelOf("", tokens);

test("a causal layer hides what comes later, a joined word only where all of it is hidden", () => {
  const rule = { ...OPEN, causal: true };
  expect([sees(rule, 2, 2), sees(rule, 2, 3)]).toEqual([true, false]);
  const axis = { tokens: ["a", "b", "c", "d"] } as Axis;
  const info = { layers: [rule, OPEN], queries: axis, keys: axis } as unknown as TraceInfo;
  const masked = maskOf({ doc: { info }, layer: 0, mean: null })!;
  expect([masked(label([1]), label([2]), 0), masked(label([1, 2]), label([2, 3]), 0), masked(label([2]), label([2]), 0)]).toEqual([true, false, false]);
  expect(maskOf({ doc: { info }, layer: 1, mean: null })).toBeNull();
  const ofMean = (...layers: number[]) => maskOf({ doc: { info }, layer: 0, mean: layers.map((layer) => [layer, 0]) });
  expect([ofMean(0, 1), ofMean(0, 0)?.(label([1]), label([2]), 0)]).toEqual([null, true]);
});

test("tokens as a reader writes them", () => {
  const axis = { labels: ["[CLS]", "tir", "·ed", "cat", "[SEP]"], special: [true, false, false, false, true] } as Axis;
  expect([readable(axis), readable(axis, 2), readable(axis, Infinity, false)]).toEqual(["[CLS] tired cat [SEP]", "[CLS] tir", "tired cat"]);
  expect(placed(labelOf("the", [12], { repeats: 12 }))).toBe("the₁₂");
});

test("a folder of a common name says its parent's as well", () => {
  expect(["/a/my-bert", "/a/minilm/model/", "org/bert", "C:\\runs\\ner\\checkpoint-500"].map(plainName)).toEqual(["my-bert", "minilm/model", "org/bert", "ner/checkpoint-500"]);
});

test("a filtered thumbnail is the filtered picture, its cells as square roots", () => {
  const view = makeShown(info, "all", false, true).view;
  const arrays = held.head(0, 1);
  const [rows, columns] = [size(view.rows), size(view.columns)];
  const cells = viewRows(arrays, view, 0, rows, 0, columns);
  const measured = measure(arrays, { masses: {}, texts: [] }, true, view);
  expect([measured.rows, measured.columns]).toEqual([rows, columns]);
  cells.forEach((weight, n) => expect(Math.abs(measured.thumb[n] - 255 * Math.sqrt(weight))).toBeLessThan(0.51));
  const norms = Float32Array.from({ length: arrays.keys }, (_, n) => n + 1);
  const normed = measure({ ...arrays, valueNorms: norms }, { masses: {}, texts: [] }, true, view, true).thumb;
  expect(Math.max(...normed)).toBe(255); // ends at its own strongest
});

test("a filtered long text is measured in part", () => {
  expect([512, 513, 2048].map((n) => siftedShare(viewOf(n)))).toEqual([1, 2, 16]);
});

test("a token that the text does not have is of no word: looking for its ends comes to an end", () => {
  const axis = { tokens: ["a", "##b", "c"], labels: ["a", "b", "c"], words: [0, 0, 1] } as unknown as Axis;
  expect(wordOf(axis, 1)).toEqual([0, 1]);
  expect(wordOf(axis, 9)).toEqual([9, 9]);
});
