// A model in the page: its parameters by role, as headscope/page/typed.py wrote them.
import { floats, readSafetensors } from "../trace/safetensors";
import type { Anatomy } from "../trace/trace";
import type { Vocabulary } from "./wordpiece";

interface Config {
  layers: number;
  heads: number;
  d: number;
  positions: number;
  types: number;
  eps: number;
  activation: string;
  /** Of the layer before the masked-LM decoder. */
  transform: string;
  pooling: "mean" | "cls";
  /** The text's vector is the first so many numbers of what is pooled. */
  width: number;
}

/** What the file says of its model, beside the weights. */
interface About {
  config: Config;
  vocabulary: Vocabulary;
  /** The mask token's id. */
  mask: number | null;
  /** True if it predicts masked tokens. */
  fills: boolean;
  model: string;
  name: string;
  fingerprint: string;
  anatomy: Anatomy;
}

export class Model {
  readonly about: About;
  private readonly weights = new Map<string, Float32Array>();

  constructor(raw: Uint8Array) {
    const file = readSafetensors(raw);
    this.about = JSON.parse(file.metadata["headscope.model"]) as About;
    for (const [role, { dtype }] of file.entries) this.weights.set(role, floats(file.bytes(role), dtype));
  }

  has(role: string): boolean {
    return this.weights.has(role);
  }

  /** A parameter as stored: a Linear's is (out, into). */
  weight(role: string, layer?: number): Float32Array {
    const name = layer === undefined ? role : `${role}.${layer}`;
    const found = this.weights.get(name);
    if (!found) throw new Error(`the model in the page has no ${name}`);
    return found;
  }
}
