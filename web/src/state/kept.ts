// What this browser keeps for the page. Files and notebooks may have no storage, or forbid it: then nothing is kept.

export function kept(name: string): unknown {
  try {
    return JSON.parse(localStorage.getItem(`headscope.${name}`) ?? "null");
  } catch {
    return null;
  }
}

export function keep(name: string, value: unknown): void {
  try {
    localStorage.setItem(`headscope.${name}`, JSON.stringify(value));
  } catch {
    // a frame without storage
  }
}
