// A table of facts: names on the left; untrusted text is isolated so that it can't change the line's direction.
import type { ComponentChildren } from "preact";

export const Facts = ({ rows }: { rows: [ComponentChildren, ComponentChildren][] }) => (
  <table class="table facts"><tbody>
    {rows.map(([name, value], n) => <tr key={n}><th scope="row"><bdi>{name}</bdi></th><td class="wide"><bdi>{value}</bdi></td></tr>)}
  </tbody></table>
);
