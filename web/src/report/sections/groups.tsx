// The legend of labels: how many heads each kind has. A click filters the grid and the table.
import { count } from "../../words/numbers";
import type { Survey } from "../data";
import { byGroup } from "../kinds";
import { group } from "../state";
import { say } from "../words";

export function Groups({ survey }: { survey: Survey }) {
  if (!survey.labels) return null;
  const shown = [...byGroup(survey)].filter(([, cells]) => cells.length);
  return (
    <ul class="groups" data-test="groups">
      {shown.map(([name, cells]) => (
        <li key={name}>
          <button class={group.value === name ? "on" : ""} aria-pressed={group.value === name} data-group={name}
            onClick={() => { group.value = group.value === name ? "" : name; }}>
            <i class={`swatch g-${name}`} aria-hidden="true" /><b>{say(`group_${name}`)}</b><b class="many">{count(cells.length)}</b>
            <small>{say(`group_${name}_key`)}</small>
          </button>
        </li>
      ))}
      {group.value && <li><button class="plain" data-test="all" onClick={() => { group.value = ""; }}>{say("show_all")}</button></li>}
    </ul>
  );
}
