// Reads a safetensors file: eight bytes of length, a JSON header, then the tensors.

export interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

export interface Safetensors {
  entries: Map<string, Entry>;
  metadata: Record<string, string>;
  raw: Uint8Array;
  bytes(name: string): Uint8Array;
}

export class FormatError extends Error {}

export function readSafetensors(raw: Uint8Array): Safetensors {
  if (raw.byteLength < 8) throw new FormatError(`the file has only ${raw.byteLength} bytes, too few for a trace`);
  const length = Number(new DataView(raw.buffer, raw.byteOffset, 8).getBigUint64(0, true));
  if (!(length > 1 && length <= raw.byteLength - 8)) {
    throw new FormatError(`the header claims ${length} bytes, the file has ${raw.byteLength}: it is truncated, or not a trace`);
  }
  let header: Record<string, unknown>;
  try {
    header = JSON.parse(new TextDecoder().decode(raw.subarray(8, 8 + length))) as Record<string, unknown>;
  } catch {
    throw new FormatError("the header is not JSON: this is not a trace file");
  }
  const { __metadata__: metadata = {}, ...tensors } = header;
  const entries = new Map(Object.entries(tensors as Record<string, Entry>));
  const start = 8 + length;
  for (const [name, { data_offsets }] of entries) {
    if (start + data_offsets[1] > raw.byteLength) throw new FormatError(`${name} is beyond the end of the file: the file is truncated`);
  }
  return {
    entries, raw,
    metadata: metadata as Record<string, string>,
    bytes(name) {
      const entry = entries.get(name);
      if (!entry) throw new FormatError(`the file has no tensor ${name}`);
      return raw.subarray(start + entry.data_offsets[0], start + entry.data_offsets[1]);
    },
  };
}

/** Half-precision numbers as 32-bit floats, by their bits: the exponent begins 112 lower, and its highest stands for no number. */
function halves(bits: Uint16Array): Float32Array {
  const out = new Float32Array(bits.length);
  new Uint32Array(out.buffer).set(Uint32Array.from(bits, (half) => ((half & 0x8000) << 16) | ((half & 0x7fff) << 13)));
  return out.map((number, n) => ((bits[n] & 0x7c00) < 0x7c00 ? number * 2 ** 112 : bits[n] & 0x3ff ? NaN : number * Infinity));
}

/** Decode a range of bytes as 32-bit floats. */
export function floats(bytes: Uint8Array, dtype: string): Float32Array {
  const aligned = bytes.slice().buffer;
  if (dtype === "F32") return new Float32Array(aligned);
  if (dtype === "F16") {
    const Half = (globalThis as { Float16Array?: new (buffer: ArrayBuffer) => ArrayLike<number> }).Float16Array;
    return Half ? new Float32Array(new Half(aligned)) : halves(new Uint16Array(aligned));
  }
  throw new FormatError(`unsupported dtype ${dtype}`);
}

/** Decode base64. */
export function fromBase64(text: string): Uint8Array {
  const native = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array }).fromBase64;
  if (native) return native.call(Uint8Array, text);
  const letters = atob(text);
  const out = new Uint8Array(letters.length);
  for (let n = 0; n < out.length; n++) out[n] = letters.charCodeAt(n);
  return out;
}

/** Encode as base64. */
export function toBase64(bytes: Uint8Array): string {
  const native = (bytes as unknown as { toBase64?: () => string }).toBase64;
  if (native) return native.call(bytes);
  let text = "";
  // as many bytes as a call may have arguments, in threes
  for (let from = 0; from < bytes.length; from += 0x6000) text += btoa(String.fromCharCode(...bytes.subarray(from, from + 0x6000)));
  return text;
}
