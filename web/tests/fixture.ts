// The trace that Python wrote (make_fixture.py), and the numbers that it expects of it.
import { readFileSync } from "node:fs";
import { makeShown } from "../src/text/shown";
import { HeldTrace } from "../src/trace/trace";

const read = (name: string): Buffer => readFileSync(new URL(name, import.meta.url));

export const file = new Uint8Array(read("./fixture.safetensors"));
export const wanted = JSON.parse(read("./fixture.json").toString()) as {
  weights: number[][][];
  scores: number[][];
  masses: Record<string, string[]>;
  statistics: Record<string, number[]>[];
};
export const { weights } = wanted;
export const held = new HeldTrace(file);
export const { info } = held;
export const S = info.queries.tokens.length;
export const whole = makeShown(info, "all", true, false).view;
export const layers = [...info.layers.keys()];
