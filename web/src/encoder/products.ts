// x W + b, norms and activations over rows of numbers: sums in 64 bits, results in 32. As in headscope.encoder.
import { dot } from "../trace/terms";

/**
 * x W + b, (rows, out), for a weight as stored, (out, into). Four rows and two columns at a time: each number that is read
 * is used more than once.
 */
export function linear(x: Float32Array, weight: Float32Array, bias: Float32Array | null, into: number): Float32Array {
  const rows = x.length / into;
  const out = weight.length / into;
  const y = new Float32Array(rows * out);
  const whole = out - (out % 2);
  let t = 0;
  for (; t + 4 <= rows; t += 4) {
    const x0 = t * into;
    const [x1, x2, x3] = [x0 + into, x0 + 2 * into, x0 + 3 * into];
    for (let o = 0; o < whole; o += 2) {
      let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
      const wa = o * into;
      const wb = wa + into;
      for (let i = 0; i < into; i++) {
        const va = weight[wa + i], vb = weight[wb + i];
        const v0 = x[x0 + i], v1 = x[x1 + i], v2 = x[x2 + i], v3 = x[x3 + i];
        a0 += v0 * va; a1 += v1 * va; a2 += v2 * va; a3 += v3 * va;
        b0 += v0 * vb; b1 += v1 * vb; b2 += v2 * vb; b3 += v3 * vb;
      }
      const at = t * out + o;
      y[at] = a0; y[at + out] = a1; y[at + 2 * out] = a2; y[at + 3 * out] = a3;
      y[at + 1] = b0; y[at + out + 1] = b1; y[at + 2 * out + 1] = b2; y[at + 3 * out + 1] = b3;
    }
    for (let row = t; row < t + 4; row++) for (let o = whole; o < out; o++) y[row * out + o] = dot(x, row * into, weight, o * into, into);
  }
  for (; t < rows; t++) for (let o = 0; o < out; o++) y[t * out + o] = dot(x, t * into, weight, o * into, into);
  if (bias) for (let n = 0; n < y.length; n++) y[n] += bias[n % out];
  return y;
}

export function add(x: Float32Array, y: Float32Array): Float32Array {
  return x.map((value, n) => value + y[n]);
}

/** LayerNorm of each row: (row - mean) / deviation, scaled and shifted (Ba et al. 2016, eq. 4). */
export function norm(x: Float32Array, scale: Float32Array, shift: Float32Array, eps: number): Float32Array {
  const width = scale.length;
  const out = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += width) {
    let mean = 0;
    for (let n = 0; n < width; n++) mean += x[start + n];
    mean /= width;
    let variance = 0;
    for (let n = 0; n < width; n++) variance += (x[start + n] - mean) ** 2;
    const factor = 1 / Math.sqrt(variance / width + eps);
    for (let n = 0; n < width; n++) out[start + n] = (x[start + n] - mean) * factor * scale[n] + shift[n];
  }
  return out;
}

/** erf to within 1.2e-7 (Abramowitz and Stegun 1964, 7.1.26). */
function erf(x: number): number {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return Math.sign(x) * (1 - series * Math.exp(-x * x));
}

const gelu = (x: number): number => 0.5 * x * (1 + erf(x * Math.SQRT1_2));
const geluByTanh = (x: number): number => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
const silu = (x: number): number => x / (1 + Math.exp(-x));

/** By the names of configs: page/typed.py refuses the others. */
export const ACTIVATIONS: Record<string, (x: number) => number> = {
  gelu, gelu_python: gelu, gelu_new: geluByTanh, gelu_fast: geluByTanh, gelu_pytorch_tanh: geluByTanh,
  relu: (x) => Math.max(0, x), silu, swish: silu, tanh: Math.tanh,
};

/** Probabilities of logits. */
export function softmax(logits: Float32Array): Float64Array {
  let most = -Infinity;
  for (const logit of logits) if (logit > most) most = logit;
  const shares = Float64Array.from(logits, (logit) => Math.exp(logit - most));
  let sum = 0;
  for (const share of shares) sum += share;
  return shares.map((share) => share / sum);
}
