// Questions of cause and effect: which are the same, in what order heads stand, how a change is called.
import { expect, test, vi } from "vitest";
import { common } from "../src/words/common";
import { page } from "../src/words/page";
import { language } from "../src/state/appearance";
import { askKey, changeName, NOTHING } from "../src/model/ask";
import { inOrder } from "../src/panels/effects";

vi.stubGlobal("document", { getElementById: () => ({ textContent: JSON.stringify({ en: Object.fromEntries(Object.entries({ ...common, ...page }).map(([name, [text]]) => [name, text])) }) }) });

test("questions are the same whatever order their heads were chosen in", () => {
  const ask = { ...NOTHING, kind: "change" as const, method: "" };
  expect(askKey({ ...ask, ablate: [[1, 2], [0, 3]] })).toBe(askKey({ ...ask, ablate: [[0, 3], [1, 2]] }));
  expect(askKey({ ...ask, mask: [1] })).not.toBe(askKey({ ...ask, mask: [2] }));
  expect(askKey({ ...NOTHING, target: ["embedding"] })).not.toBe(askKey(NOTHING));
});

test("heads stand by the size of their effect; layers that have not come are left out", () => {
  const change: number[][] = [];
  change[1] = [0.1, -0.4];
  change[2] = [0.2, 0];
  expect(inOrder(change).map(({ layer, head }) => `${layer}.${head}`)).toEqual(["1.1", "2.0", "1.0", "2.1"]);
});

test("a change is named by what it does and to what", () => {
  language.value = "en";
  const names = { 2: "cat", 5: "·ed" };
  const plain = (text: string): string => text.replace(/[\u2068\u2069]/g, "");
  expect(changeName({ ask: { ...NOTHING, kind: "edge", method: "", edge: [1, 3, 2, 5] }, names })).toContain("1.3");
  expect(plain(changeName({ ask: { ...NOTHING, kind: "change", method: "", ablate: [[0, 1]], replace: [[2, "dog"]] }, names }))).toBe("✕ 0.1 silenced · “cat” → “dog”");
});
