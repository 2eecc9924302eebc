// Why a head can't be shown: its numbers are with a server that doesn't answer.
import { lost, tries } from "../state/away";
import { current, wanted, wantedKey } from "../drawing/pictures";
import { doc } from "../state/store";
import { say } from "../words";

export function Lost() {
  if (!lost.value || !doc.value?.info.away) return null;
  // another head's picture under this one's name would be wrong
  const nothing = !current.value?.key.endsWith(wantedKey(wanted.value!));
  return (
    <p class={`lost${nothing ? " nothing" : ""}`} role="alert">
      <span>{lost.value}</span> <button onClick={() => { tries.value++; }}>{say("try_again")}</button>
    </p>
  );
}
