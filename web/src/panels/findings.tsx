// What is worth reading in the text, below the head line: a sentence each, and a click to its head and cell.
import { useEffect, useRef } from "preact/hooks";
import { signal } from "@preact/signals";
import { layerColour } from "../colour";
import { placeOf } from "../comparing";
import { goTo } from "../opening";
import * as state from "../state";
import { wordAt } from "../shown";
import { at, doc } from "../store";
import type { Finding, TraceInfo } from "../trace/trace";
import { isWord, percent, say } from "../words";

export const findingsOpen = signal(false);

/** The number of a finding, and the one that it is held against. */
function evidence({ numbers }: Finding): { share: string; words: string } {
  const share = percent(numbers.weight ?? numbers.overlap ?? numbers.ratio ?? NaN);
  const against = ["expected", "written", "average", "between"].find((name) => numbers[name] !== undefined);
  if (against === undefined) return { share, words: say("evidence_ratio", { share }) };
  const word = `evidence_${against}`;
  return { share, words: isWord(word) ? say(word, { share, other: percent(numbers[against]) }) : share };
}

/** A finding in the reader's language; one of a kind that the page has no words for keeps Python's sentence. */
function phrase(info: TraceInfo, { kind, sentence, cells, token }: Finding): string {
  const word = `finding_${kind}`;
  if (!isWord(word)) return sentence;
  const [first, second] = cells;
  return say(word, {
    token: token ?? (first.key === null ? "" : wordAt(info.keys, first.key)),
    text: first.query === null ? "" : wordAt(info.queries, first.query),
    other: second ? `${second.layer}.${second.head}` : "",
  });
}

const isHere = (info: TraceInfo, finding: Finding): boolean => {
  const { layer, head } = at.value;
  return finding.cells.some((cell) => {
    const place = placeOf(info, cell.layer, cell.head);
    return place?.layer === layer && place.head === head && cell.query === state.query.value && cell.key === state.key.value;
  });
};

/** A pair of heads that look alike: the second click shows the other one. */
function open(info: TraceInfo, { cells }: Finding): void {
  const [first, second] = cells;
  const place = placeOf(info, first.layer, first.head);
  const there = place?.layer === at.value.layer && place.head === at.value.head;
  goTo(info, there && second ? second : first);
  findingsOpen.value = false;
}

function Chip({ info, finding, full }: { info: TraceInfo; finding: Finding; full: boolean }) {
  const [{ layer, head }] = finding.cells;
  const { share, words } = evidence(finding);
  const here = isHere(info, finding);
  return (
    <button class={`finding${here ? " here" : ""}`} aria-pressed={here} data-test="finding" data-kind={finding.kind} title={`${phrase(info, finding)} · ${words}`} onClick={() => open(info, finding)}>
      <i style={{ background: layerColour(placeOf(info, layer, head)?.layer ?? 0, info.layers.length, state.dark.value) }} />
      <b>{layer}.{head}</b> <span><bdi>{phrase(info, finding)}</bdi></span> <em>{full ? words : share}</em>
    </button>
  );
}

export function Findings() {
  const info = doc.value?.info;
  const line = useRef<HTMLDivElement>(null);
  const every = info?.findings ?? [];
  // a finding that does not fit in the line is taken away whole
  useEffect(() => {
    const element = line.current;
    if (!element) return;
    const fit = (): void => {
      const [first, ...rest] = [...element.children] as HTMLElement[];
      for (const one of rest) one.style.visibility = one.offsetTop > first.offsetTop ? "hidden" : "";
    };
    const observer = new ResizeObserver(fit);
    observer.observe(element);
    fit();
    return () => observer.disconnect();
  });
  if (!info) return null;
  return (
    <section class="findings" aria-label={say("findings")}>
      <h2>{say("findings")}</h2>
      {every.length > 0
        ? <div class="line" ref={line}>{every.map((finding, n) => <Chip key={n} info={info} finding={finding} full={false} />)}</div>
        : <p class="quiet small" data-test="no-findings">{say(info.findings ? "findings_none" : "findings_absent")}</p>}
      {every.length > 0 && <button aria-expanded={findingsOpen.value} data-test="findings-all" onClick={() => { findingsOpen.value = !findingsOpen.value; }}>
        {say("findings_all", { n: every.length })} <span aria-hidden="true">{findingsOpen.value ? "▴" : "▾"}</span>
      </button>}
      {findingsOpen.value && every.length > 0 && (
        <div class="panel every" data-test="findings-list">
          <p class="quiet small">{say("findings_how")}</p>
          <ol>{every.map((finding, n) => <li key={n}><Chip info={info} finding={finding} full /></li>)}</ol>
        </div>
      )}
    </section>
  );
}
