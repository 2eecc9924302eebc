// A head's name in a sentence, which selects the head.
import { headLabel, type Survey } from "../data";

export const HeadButton = ({ survey, cell, onClick, ...rest }: { survey: Survey; cell: number; onClick: () => void; "data-statistic"?: string }) => (
  <button class="head" data-head={cell} onClick={onClick} {...rest}>{headLabel(survey, cell)}</button>
);
