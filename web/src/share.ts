// What is on the screen, for somebody else: a link, or one file in which this page is written again.
import { docs, doc } from "./state/store";
import { fileName } from "./drawing/export";
import { download, escaped } from "./drawing/files";
import { toShare } from "./state/hash";
import { start } from "./model/remote";
import { runs } from "./model/runs";
import { FIELDS } from "./state/state";
import { engine } from "./trace/engine";
import { letters } from "./words";

/** Bytes of a trace per element, a multiple of 3, as in headscope/page/html.py. */
const CHUNK = 24 << 20;
const LONGEST_TITLE = 48;

/** What stands in the page until it is drawn. */
const bare = document.getElementById("page")?.innerHTML ?? "";

/** JSON that can neither close its element nor open a comment in it, as in headscope/built.py. */
const inert = (value: unknown): string =>
  JSON.stringify(value).replace(/[<>&\u2028\u2029]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** The page up to its data. Its policy allows this very script and style. */
function shell(): string {
  const { name, info } = doc.value!;
  const all = letters(name.replace(/\s+/g, " "));
  const title = `${all.slice(0, LONGEST_TITLE).join("")}${all.length > LONGEST_TITLE ? "…" : ""} · ${info.name} · headscope`;
  const [script, style] = ["head > script", "head > style"].map((place) => document.querySelector(place)!.outerHTML);
  const metas = Array.from(document.querySelectorAll("head > meta"), (meta) => `${meta.outerHTML}\n`).join("");
  return `<!doctype html>\n<html lang="en">\n<head>\n${metas}<title>${escaped(title)}</title>\n${script}\n${style}\n</head>\n<body>\n<div id="page">${bare}</div>\n`;
}

/** True if a file can hold all that is open: of a long text on a server only the header is here. */
export const fits = (): boolean => docs.value.every(({ info }) => !info.away);

/** Megabytes of the file, without making it. */
export function sharedMegabytes(): number {
  return (shell().length + docs.value.reduce((sum, { info }) => sum + (info.bytes * 4) / 3, 0)) / 1e6;
}

/** The link's address; null in a frame, which has none. */
export const shareLink = (): string | null => {
  const state = toShare(FIELDS);
  return location.protocol === "about:" ? null : location.href.replace(/#.*$/, "") + (state ? `#${state}` : "");
};

/** Who can open the link, as a word. */
export const readers = () =>
  location.protocol === "about:" ? "share_frame" : start.value.token ? "share_server" : location.protocol === "file:" ? "share_disk" : "share_site";

/** Save the open traces and the state of the page as one file. Returns its name. */
export async function saveFile(): Promise<string> {
  const open = docs.value;
  const about = {
    home: "file", traces: open.length, bytes: open.map(({ info }) => info.bytes), names: open.map(({ name }) => name),
    of: open.map(({ of }) => of && { ...of, origin: open.findIndex(({ id }) => id === of.origin) }),
    remote: open.map(({ remote }) => remote), runs: runs.value.filter(({ base }) => open.some(({ remote }) => remote === base)),
    statistics: start.value.statistics, atlas: start.value.atlas && { ...start.value.atlas, site: null }, state: toShare(FIELDS).replace(/\bby=guess&?/, ""),
  };
  const words = document.getElementById("hs-words")!.outerHTML;
  const parts: string[] = [shell(), words, `\n<script type="application/json" id="hs-about">${inert(about)}</script>\n`];
  for (const [n, { id, info }] of open.entries()) {
    for (let from = 0; from < info.bytes; from += CHUNK) {
      const base64 = await engine.ask("copy", { id, from, bytes: CHUNK });
      parts.push(`<script type="application/octet-stream" id="hs-trace-${n}${from ? `-${from / CHUNK}` : ""}">`, base64, "</script>\n");
    }
  }
  const name = fileName("html");
  download(new Blob([...parts, "</body>\n</html>\n"]), "text/html", name);
  return name;
}
