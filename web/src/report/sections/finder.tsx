// Which heads are wanted: those with a word in their label, or of a kind. It filters the grid and the table.
import { useEffect, useRef } from "preact/hooks";
import { count } from "../../words/numbers";
import { headLabel, type Survey } from "../data";
import { byGroup, groupOf, titleOf } from "../kinds";
import { group, wanted } from "../state";
import { say } from "../words";

/** True for a head of the chosen kind whose name or label has what was typed. */
export function isWanted(survey: Survey, cell: number): boolean {
  const label = survey.labels?.[cell];
  if (group.value && (!label || groupOf(label) !== group.value)) return false;
  const name = headLabel(survey, cell);
  const says = label ? `${label.label} ${titleOf(label)}`.toLowerCase() : "";
  return wanted.value.toLowerCase().split(/\s+/).filter(Boolean).every((word) =>
    (/^\d+(\.\d*)?$/.test(word) ? name === word || (word.endsWith(".") && name.startsWith(word)) : says.includes(word)));
}

export function Finder({ survey }: { survey: Survey }) {
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const focus = (event: KeyboardEvent): void => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) return;
      event.preventDefault();
      box.current?.focus();
    };
    addEventListener("keydown", focus);
    return () => removeEventListener("keydown", focus);
  }, []);
  const kinds = survey.labels ? [...byGroup(survey)].filter(([, cells]) => cells.length) : [];
  return (
    <div class="row finder" data-test="groups">
      <input ref={box} type="search" placeholder={`${say("find")}  /`} aria-label={say("find_says")} title={say("find_says")} value={wanted.value} data-test="find"
        onInput={(event) => { wanted.value = event.currentTarget.value; }} />
      {kinds.map(([name, cells]) => (
        <button key={name} class="plain" aria-pressed={group.value === name} data-group={name} title={say(`group_${name}_key`)}
          onClick={() => { group.value = group.value === name ? "" : name; }}>{say(`kind_${name}`)} <b>{count(cells.length)}</b></button>
      ))}
      {(group.value || wanted.value) && <button data-test="all" onClick={() => { group.value = wanted.value = ""; }}>{say("show_all")}</button>}
    </div>
  );
}
