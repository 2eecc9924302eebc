// A table of facts: names at the left, what is somebody's text kept from turning the line around it.
import type { ComponentChildren } from "preact";

export const Facts = ({ rows }: { rows: [ComponentChildren, ComponentChildren][] }) => (
  <table class="table facts"><tbody>
    {rows.map(([name, value], n) => <tr key={n}><th scope="row"><bdi>{name}</bdi></th><td class="wide"><bdi>{value}</bdi></td></tr>)}
  </tbody></table>
);
